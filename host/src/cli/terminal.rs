//! What only a terminal gets.

use std::io::{self, IsTerminal as _, Write as _};

/// Whether colours are shown: on a terminal, unless NO_COLOR is set or the terminal is dumb.
pub(super) fn colours(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// A table for standard output: on a terminal, the words that say how an object is have the colour of what they say.
pub(super) fn coloured(table: &str) -> String {
    if !colours(io::stdout().is_terminal()) {
        return table.to_owned();
    }
    let paint = |table: String, (word, colour): (&str, u8)| {
        table.replace(&format!(" {word} "), &format!(" \x1b[{colour}m{word}\x1b[0m "))
    };
    [("True", 32), ("False", 31), ("Unknown", 33)].into_iter().fold(table.to_owned(), paint)
}

/// A heading for standard output.
pub(super) fn bold(text: &str) -> String {
    if colours(io::stdout().is_terminal()) { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// The whole terminal, until it is dropped.
pub(super) struct Screen(());

impl Screen {
    /// Shows an empty screen beside what is there.
    pub fn enter() -> io::Result<Self> {
        let this = Self(());
        write!(io::stdout(), "\x1b[?1049h\x1b[?25l")?;
        Ok(this)
    }

    /// Replaces what is shown by these lines, as far as they fit.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let (width, height) = terminal_size::terminal_size().map_or((80, 24), |(w, h)| (w.0.into(), h.0.into()));
        let mut text = String::from("\x1b[H");
        let fits = if lines.len() > height { height.saturating_sub(1) } else { lines.len() };
        for line in &lines[..fits] {
            // To the end of the line: nothing of what was there shines through.
            text.push_str(&format!("{}\x1b[K\r\n", clipped(line, width)));
        }
        text.push_str("\x1b[J");
        if fits < lines.len() {
            text.push_str(&format!("and {} more lines", lines.len() - fits));
        } else if text.ends_with("\r\n\x1b[J") {
            // A last line feed would scroll a full screen.
            text.truncate(text.len() - "\r\n\x1b[J".len());
            text.push_str("\x1b[J");
        }
        let mut out = io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = write!(io::stdout(), "\x1b[?25h\x1b[?1049l");
        let _ = io::stdout().flush();
    }
}

/// The part of a line that fits, its colours not counted.
fn clipped(line: &str, width: usize) -> String {
    let (mut text, mut shown, mut escape) = (String::new(), 0, false);
    for c in line.chars() {
        if escape || c == '\x1b' {
            escape = c != 'm';
            text.push(c);
        } else if shown < width {
            shown += 1;
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_it_is_shown_and_its_colours_end() {
        assert_eq!(clipped("a \x1b[32mTrue\x1b[0m b", 4), "a \x1b[32mTr\x1b[0m");
        assert_eq!(clipped("short", 80), "short");
    }
}
