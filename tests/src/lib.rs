//! Labs that the suites run in.
