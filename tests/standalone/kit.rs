//! Runs the binary as people do, and makes what it prints comparable.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use proxy_operator_tests::lab::Lab;

/// Ends with this status; answers standard output and error.
pub fn ends(status: i32, args: &[&str]) -> (String, String) {
    ends_with_input(status, args, "")
}

/// The same with a text at standard input.
pub fn ends_with_input(status: i32, args: &[&str], input: &str) -> (String, String) {
    let mut command = Command::new(proxy_operator_tests::binary());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status: ended, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert_eq!(ended.code(), Some(status), "{args:?}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

/// Against the operator of a lab.
pub fn at(lab: &Lab, status: i32, args: &[&str]) -> (String, String) {
    let data = lab.path("data").display().to_string();
    ends(status, &[args, &["--data", &data]].concat())
}

/// A table with one blank between its cells, however wide they are.
pub fn words(table: &str) -> String {
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

/// Holds a text against the one in `snapshots`: folders, ports, addresses, times and ids are left out.
#[macro_export]
macro_rules! shows {
    ($name:expr, $text:expr) => {
        insta::with_settings!({
            omit_expression => true,
            prepend_module_to_snapshot => false,
            filters => [
                (r"/tmp/\.tmp[A-Za-z0-9]+", "DIR"),
                (r"127\.0\.0\.1:\d{2,5}", "127.0.0.1:PORT"),
                (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
                (r"\b\d+(s|m|h|d)\b", "AGE"),
                (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
                (r" +\n", "\n"),
            ],
        }, { insta::assert_snapshot!($name, $text) })
    };
}
