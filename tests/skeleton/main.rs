//! The operator's binary from outside: standalone, with the sandbox cloud, through REST.

mod architecture;
mod bad_input;
mod crash;
mod demo;
mod faults;
mod holding;
mod main_job;
mod parting;
mod reasons;
mod static_proxies;
mod swap;
