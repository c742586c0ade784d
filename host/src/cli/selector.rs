//! Label selectors as kubectl takes them: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.

use std::collections::BTreeMap;

/// All of these must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    In(Vec<String>),
    /// Holds where the label is missing, too.
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl Selector {
    pub fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|Requirement { key, rule }| match (rule, labels.get(key)) {
            (Rule::In(values), Some(value)) => values.contains(value),
            (Rule::NotIn(values), Some(value)) => !values.contains(value),
            (Rule::Exists, value) => value.is_some(),
            (Rule::Missing, value) => value.is_none(),
            (Rule::In(_), None) => false,
            (Rule::NotIn(_), None) => true,
        })
    }
}

impl std::str::FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parts(text).into_iter().map(requirement).collect::<Result<_, _>>().map(Self)
    }
}

/// Splits at commas outside parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut deep = false;
    text.split(|c| {
        match c {
            '(' => deep = true,
            ')' => deep = false,
            _ => {}
        }
        c == ',' && !deep
    })
    .collect()
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let text = text.trim();
    let wrong = || {
        format!("{text:?} is no requirement: write KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY")
    };
    let one = |value: &str| vec![value.trim().to_owned()];
    let set = || {
        let (head, values) = text.strip_suffix(')')?.split_once('(')?;
        let (key, word) = head.trim().split_once(char::is_whitespace)?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match word.trim() {
            "in" => Some((key, Rule::In(values))),
            "notin" => Some((key, Rule::NotIn(values))),
            _ => None,
        }
    };
    let (key, rule) = if let Some(found) = set() {
        found
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Rule::NotIn(one(value)))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Rule::In(one(value)))
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Rule::Missing)
    } else {
        (text, Rule::Exists)
    };
    let key = key.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let values = match &rule {
        Rule::In(values) | Rule::NotIn(values) => values.as_slice(),
        Rule::Exists | Rule::Missing => &[],
    };
    if key.is_empty() || !key.chars().all(fits) || !values.iter().all(|value| value.chars().all(fits)) {
        return Err(wrong());
    }
    Ok(Requirement { key: key.to_owned(), rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_choose_as_kubectl_does() {
        let labels = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
        for (text, fits) in [
            ("team=blue", true),
            ("team==blue", true),
            ("team=red", false),
            ("team!=red", true),
            ("other!=red", true),
            ("team in (red, blue)", true),
            ("team notin (red,green),team", true),
            ("team,other", false),
            ("!other", true),
            ("!team", false),
        ] {
            assert_eq!(text.parse::<Selector>().unwrap().fits(&labels), fits, "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in ["", "=a", "a,", "a in b", "a b", "a in (b", "a>1"] {
            let error = text.parse::<Selector>().unwrap_err();
            assert!(error.contains("is no requirement: write KEY=VALUE"), "{text}: {error}");
        }
    }
}
