//! `completion` and `man`: what shells and readers are given, made from the commands themselves.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;

use super::{command, write_whole};

const NAME: &str = "proxy-operator";

/// Print what a shell needs to complete commands
#[derive(Args)]
#[command(
    after_help = "Examples:\n  proxy-operator completion bash > /etc/bash_completion.d/proxy-operator\n  proxy-operator completion zsh > ~/.zfunc/_proxy-operator\n  proxy-operator completion fish > ~/.config/fish/completions/proxy-operator.fish"
)]
pub(super) struct CompletionArgs {
    /// For which shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Write man pages
#[derive(Args)]
#[command(after_help = "Example:\n  proxy-operator man -o /usr/local/share/man/man1")]
pub(super) struct ManArgs {
    /// Folder to write them to, one for each command
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
}

pub(super) fn completion(args: &CompletionArgs) -> anyhow::Result<()> {
    let shell = match args.shell.as_str() {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), NAME, &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

pub(super) fn man(args: &ManArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.output).with_context(|| args.output.display().to_string())?;
    let mut command = command().disable_help_subcommand(true);
    command.build();
    let written = page(&command, NAME, &args.output)?;
    println!("{written} pages are in {}", args.output.display());
    Ok(())
}

/// Writes the page of a command and those below it; answers how many.
fn page(command: &Command, name: &str, dir: &std::path::Path) -> anyhow::Result<usize> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    write_whole(&dir.join(format!("{name}.1")), 0o644, &String::from_utf8(text)?)?;
    let mut written = 1;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        written += page(below, &format!("{name}-{}", below.get_name()), dir)?;
    }
    Ok(written)
}
