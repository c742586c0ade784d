//! A run's report: a table for people, and JUnit XML for CI.

use comfy_table::{ContentArrangement, Table, presets};
use quick_xml::Writer;
use quick_xml::events::BytesText;

use super::{Outcome, Report};

/// A line for each case; below it what was seen where a rule is broken, and last how many.
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["CASE", "RESULT", "SECONDS"]);
    let (mut passed, mut failed, mut not_applicable) = (0, 0, 0);
    let mut below = String::new();
    for verdict in &report.verdicts {
        let name = verdict.case.name;
        let word = match &verdict.outcome {
            Outcome::Passed => {
                passed += 1;
                "passed".to_owned()
            }
            Outcome::Failed(seen) => {
                failed += 1;
                below.push_str(&format!("\n{name} failed\n  rule: {}\n  seen: {seen}\n", verdict.case.rule));
                "FAILED".to_owned()
            }
            Outcome::NotApplicable(why) => {
                not_applicable += 1;
                format!("not applicable: {why}")
            }
        };
        table.add_row([name, &word, &format!("{:.1}", verdict.took.as_secs_f32())]);
    }
    for left in &report.left {
        below.push_str(&format!("\nleft behind: {left}\n"));
    }
    let count = format!("{passed} passed, {failed} failed, {not_applicable} not applicable");
    format!("{}\n{below}\n{}: {count}\n", table.to_string().trim_end(), report.plugin)
}

/// The same as JUnit XML. A case that does not apply is skipped there, with its reason.
///
/// # Errors
/// Never, as far as memory can be written to.
pub fn junit(report: &Report) -> std::io::Result<String> {
    let count = |of: fn(&Outcome) -> bool| report.verdicts.iter().filter(|v| of(&v.outcome)).count().to_string();
    let failures = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::NotApplicable(_)));
    let total: f32 = report.verdicts.iter().map(|verdict| verdict.took.as_secs_f32()).sum();
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    writer
        .create_element("testsuite")
        .with_attribute(("name", format!("conformance of {}", report.plugin).as_str()))
        .with_attribute(("tests", report.verdicts.len().to_string().as_str()))
        .with_attribute(("failures", failures.as_str()))
        .with_attribute(("skipped", skipped.as_str()))
        .with_attribute(("time", format!("{total:.3}").as_str()))
        .write_inner_content(|writer| {
            for verdict in &report.verdicts {
                let case = writer
                    .create_element("testcase")
                    .with_attribute(("classname", report.plugin.as_str()))
                    .with_attribute(("name", verdict.case.name))
                    .with_attribute(("time", format!("{:.3}", verdict.took.as_secs_f32()).as_str()));
                match &verdict.outcome {
                    Outcome::Passed => case.write_empty()?,
                    Outcome::Failed(seen) => case.write_inner_content(|writer| {
                        writer
                            .create_element("failure")
                            .with_attribute(("message", plain(seen).as_str()))
                            .write_text_content(BytesText::new(verdict.case.rule))?;
                        Ok(())
                    })?,
                    Outcome::NotApplicable(why) => case.write_inner_content(|writer| {
                        writer
                            .create_element("skipped")
                            .with_attribute(("message", plain(why).as_str()))
                            .write_empty()?;
                        Ok(())
                    })?,
                };
            }
            Ok(())
        })?;
    let xml = String::from_utf8_lossy(&writer.into_inner()).into_owned();
    Ok(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{xml}\n"))
}

/// Without characters that XML 1.0 cannot hold.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::conformance::{Verdict, all};

    fn mk_report() -> Report {
        let outcomes = [
            Outcome::Passed,
            Outcome::Failed("it said <\"nothing\"> & left\u{1}\u{ffff}".into()),
            Outcome::NotApplicable("it makes nothing".into()),
        ];
        let verdict = |(case, outcome)| Verdict { case, outcome, took: Duration::from_millis(20) };
        Report { plugin: "p".into(), verdicts: all().iter().zip(outcomes).map(verdict).collect(), left: vec![] }
    }

    #[test]
    fn the_table_tells_each_case_and_what_was_seen() {
        let text = table(&mk_report());
        assert!(text.contains("not applicable: it makes nothing"), "{text}");
        assert!(text.contains(all()[1].rule) && text.contains("it said <\"nothing\">"), "{text}");
        assert!(text.ends_with("p: 1 passed, 1 failed, 1 not applicable\n"), "{text}");
        assert!(!mk_report().passed());
    }

    #[test]
    fn junit_is_well_formed_and_counts() {
        let xml = junit(&mk_report()).unwrap();
        let mut reader = quick_xml::Reader::from_str(&xml);
        let mut cases = 0;
        loop {
            match reader.read_event().unwrap() {
                quick_xml::events::Event::Eof => break,
                quick_xml::events::Event::Start(e) | quick_xml::events::Event::Empty(e) => {
                    cases += usize::from(e.name().as_ref() == "testcase");
                }
                _ => {}
            }
        }
        assert_eq!(cases, 3);
        assert!(xml.contains("message=\"it said &lt;&quot;nothing&quot;&gt; &amp; left  \""), "{xml}");
        assert!(xml.contains("tests=\"3\" failures=\"1\" skipped=\"1\""), "{xml}");
    }
}
