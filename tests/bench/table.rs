//! One line per figure, printed as it comes.

use std::time::Duration;

/// What is printed so far.
#[derive(Default)]
pub struct Table {
    begun: bool,
}

/// The bound of a figure.
#[derive(Clone, Copy)]
pub enum Target {
    /// Less than this.
    Under(f64),
    /// More than this.
    Over(f64),
    /// Only to be known.
    None,
}

impl Table {
    /// Prints a figure in `unit`.
    pub fn row(&mut self, what: &str, figure: f64, unit: &str, target: Target) {
        if !std::mem::replace(&mut self.begun, true) {
            println!("{:<66} {:>13}   {:<13} ", "what", "figure", "target");
        }
        let (bound, verdict) = match target {
            Target::Under(bound) => (format!("< {}", number(bound)), if figure < bound { "ok" } else { "over" }),
            Target::Over(bound) => (format!("> {}", number(bound)), if figure > bound { "ok" } else { "over" }),
            Target::None => ("-".into(), ""),
        };
        let line = format!("{what:<66} {:>13}   {bound:<13} {verdict}", format!("{} {unit}", number(figure)));
        println!("{}", line.trim_end());
    }
}

fn number(figure: f64) -> String {
    if figure >= 1000.0 {
        let digits = format!("{figure:.0}");
        let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
        groups.join(",")
    } else if figure >= 100.0 || figure.fract() == 0.0 {
        format!("{figure:.0}")
    } else if figure >= 10.0 {
        format!("{figure:.1}")
    } else {
        format!("{figure:.2}")
    }
}

/// The value below which this part of the samples lies.
pub fn quantile(samples: &mut [Duration], part: f64) -> Duration {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    samples.get((last as f64 * part) as usize).copied().unwrap_or_default()
}

/// In microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// In milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
