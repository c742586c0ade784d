//! A page of `docs/` and what stands between its fences.
//!
//! A fence with `file=PATH` is written to that path; one with `sh` is run, and its output must hold each line of a `text`
//! fence after it, whatever the spaces. Fences without a language are for the reader alone. `$CLONE` is this repository.

use std::fs;
use std::path::Path;
use std::process::Command;

/// A page, or a part of one.
pub struct Page {
    name: String,
    pub text: String,
}

impl Page {
    /// Reads `docs/NAME`.
    pub fn read(name: &str) -> Self {
        let path = proxy_operator_tests::root().join("docs").join(name);
        Self {
            name: name.into(),
            text: fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
        }
    }

    /// From a heading to the next of its level.
    pub fn section(&self, heading: &str) -> Self {
        let (_, rest) =
            self.text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{}: no {heading}", self.name));
        let text = rest.split("\n## ").next().unwrap_or(rest);
        Self { name: format!("{} {heading}", self.name), text: text.into() }
    }

    /// Each fence with its language and file.
    fn fences(&self) -> Vec<(String, String)> {
        let mut fences: Vec<(String, String)> = vec![];
        let mut inside = false;
        for line in self.text.lines() {
            match (line.strip_prefix("```"), inside) {
                (Some(info), false) => {
                    fences.push((info.to_owned(), String::new()));
                    inside = true;
                }
                (Some(_), true) => inside = false,
                (None, true) => {
                    let (_, text) = fences.last_mut().expect("a fence is open");
                    text.push_str(line);
                    text.push('\n');
                }
                (None, false) => {}
            }
        }
        fences
    }

    /// Does what it says, in `dir`.
    pub fn follow(&self, dir: &Path) {
        let (mut said, mut steps) = (String::new(), 0);
        for (info, text) in self.fences() {
            match info.split_once(" file=").map_or((info.as_str(), None), |(language, file)| (language, Some(file))) {
                (_, Some(file)) => {
                    let path = dir.join(file);
                    // Written over what is there, as an editor does it: the mode stays.
                    fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                }
                ("sh", None) => {
                    said = run(dir, &text);
                    steps += 1;
                }
                ("text", None) => {
                    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
                    let lines: Vec<_> = said.lines().map(plain).collect();
                    for line in text.lines().map(plain) {
                        assert!(
                            lines.iter().any(|found| found.starts_with(&line)),
                            "{}: {line:?} is not in\n{said}",
                            self.name
                        );
                    }
                }
                _ => {}
            }
        }
        assert!(steps > 0, "{} holds no command", self.name);
    }
}

fn run(dir: &Path, script: &str) -> String {
    let clone = fs::canonicalize(proxy_operator_tests::root()).expect("the repository");
    let bin = clone.join("bin");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("CLONE", clone);
    let output = proxy_operator_tests::authors::as_author(&mut command).output().expect("bash");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}\n{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}
