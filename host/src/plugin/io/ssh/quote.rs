//! From an argv to the one line that an SSH server hands to the account's shell.

/// Longest command line: a Linux kernel passes no longer one to a shell.
const LINE_BYTES: usize = (128 << 10) - 1;

/// Why an argv is not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuoteError {
    /// No program.
    #[error("argv names no program: its first word is missing, empty or an option")]
    NoProgram,
    /// A NUL byte.
    #[error("word {0} of argv holds a NUL byte, which no argument can")]
    Nul(usize),
    /// Too long.
    #[error("argv is over {LINE_BYTES} bytes when quoted; hand data over on standard input")]
    TooLong,
}

/// Quotes each word for a POSIX shell. Single quotes keep everything but themselves, so that the shell sees each word as it
/// is, whatever it holds. `exec` puts the program in the shell's place: signals reach it, and its end is told as it was.
pub fn quote(argv: &[String]) -> Result<String, QuoteError> {
    // The shell would read an option as one of `exec`.
    if argv.first().is_none_or(|program| program.is_empty() || program.starts_with('-')) {
        return Err(QuoteError::NoProgram);
    }
    if let Some(at) = argv.iter().position(|word| word.contains('\0')) {
        return Err(QuoteError::Nul(at));
    }
    let words: Vec<_> = argv.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    let line = format!("exec {}", words.join(" "));
    if line.len() > LINE_BYTES { Err(QuoteError::TooLong) } else { Ok(line) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn words_are_single_quoted() {
        assert_eq!(quote(&mk_argv(&["printf", "%s", "a b"])), Ok("exec 'printf' '%s' 'a b'".into()));
        assert_eq!(quote(&mk_argv(&["echo", "it's", "", "'"])), Ok(r"exec 'echo' 'it'\''s' '' ''\'''".into()));
    }

    #[test]
    fn what_is_no_command_is_refused() {
        assert_eq!(quote(&[]), Err(QuoteError::NoProgram));
        assert_eq!(quote(&mk_argv(&["", "a"])), Err(QuoteError::NoProgram));
        assert_eq!(quote(&mk_argv(&["-c", "a"])), Err(QuoteError::NoProgram));
        assert_eq!(quote(&mk_argv(&["a", "b\0c"])), Err(QuoteError::Nul(1)));
        assert_eq!(quote(&mk_argv(&["a", &"x".repeat(LINE_BYTES)])), Err(QuoteError::TooLong));
    }

    /// A real shell splits the line into the words that it was made of.
    #[test]
    fn a_shell_sees_every_word_as_it_is() {
        let mut argv =
            mk_argv(&["printf", r"%s\0", "-n", "", "a\nb\r\n", "ü🦀", "*?[a]", "~", "$HOME `id` $(id)", "!!"]);
        argv.extend((1..128u8).map(|byte| format!("x{}y", char::from(byte))));
        let line = quote(&argv).expect("all of these can be quoted");
        let output = std::process::Command::new("sh").args(["-c", &line]).output().expect("there is a shell");
        let seen: Vec<_> = output.stdout.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        assert_eq!(seen[..seen.len() - 1], argv[2..]);
    }
}
