//! The operator in full: the pure reconciler under random schedules.

mod model;
