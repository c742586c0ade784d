//! Commands over SSH to a real sshd: what arrives, what comes back, and how they end.

use std::time::{Duration, Instant};

use proxy_operator::model::error::ErrorKind;
use proxy_operator::plugin::handle::Handle;
use proxy_operator_tests::plugins::{Setup, eventually, identity, present, request, soon};
use proxy_operator_tests::sshd::Sshd;
use serde_json::{Value, json};

/// A handle of the guest `exec` that runs these commands.
pub async fn handle_of(setup: Setup, run: Value) -> Handle {
    setup.config(json!({"run": run})).handle("exec").await
}

/// What the guest tells of its last command.
pub async fn told(handle: &Handle) -> Value {
    let found = soon("a command", handle.get(&identity("a", "here"))).await.expect("the guest tells faults as text");
    let told = present(found).message.expect("exec tells what it got");
    serde_json::from_str(&told).unwrap_or_else(|e| panic!("{told}: {e}"))
}

/// Runs one command.
pub async fn exec(setup: Setup, wish: Value) -> Value {
    told(&handle_of(setup, json!([wish])).await).await
}

#[tokio::test]
async fn a_command_answers_with_status_and_both_streams() {
    let Some(server) = Sshd::start() else { return };
    let script = "echo out; echo err >&2; exit 3";
    let answer = exec(server.setup(), json!({"argv": ["sh", "-c", script]})).await;
    assert_eq!(answer, json!({"status": 3, "stdout": "out\n", "stderr": "err\n", "truncated": false}));
    let answer = exec(server.setup(), json!({"argv": ["sh", "-c", "kill -TERM $$"]})).await;
    assert_eq!(answer, json!({"signal": "TERM", "stdout": "", "stderr": "", "truncated": false}));
    let answer = exec(server.setup(), json!({"argv": ["no-such-program"]})).await;
    assert_eq!(answer["status"], 127);
}

#[tokio::test]
async fn each_word_of_argv_arrives_as_it_is() {
    let Some(server) = Sshd::start() else { return };
    let words = [
        "-n", "", "a b", "a\nb", "it's", "\"", "$HOME", "`id`", "$(id)", "\\", "*", "?", "[a]", "~", "!!", "#", "a;b",
        "a&b", "a|b", "<", ">", "(", "{a,b}", "\t", "ü🦀", "%s",
    ];
    let mut argv = vec!["printf", "%s\\0"];
    argv.extend(words);
    let answer = exec(server.setup(), json!({"argv": argv})).await;
    let expected: String = words.iter().flat_map(|word| [*word, "\0"]).collect();
    assert_eq!(answer["stdout"], expected);
}

#[tokio::test]
async fn what_is_no_command_is_refused_and_nothing_is_sent() {
    let Some(server) = Sshd::start() else { return };
    for (argv, fault, says) in [
        (json!([]), "FaultKind::Denied", "names no program"),
        (json!(["", "a"]), "FaultKind::Denied", "names no program"),
        (json!(["-c", "a"]), "FaultKind::Denied", "names no program"),
        (json!(["echo", "a\u{0}b"]), "FaultKind::Denied", "word 1 of argv holds a NUL byte"),
        (json!(["echo", "x".repeat(200_000)]), "FaultKind::TooLarge", "on standard input"),
    ] {
        let answer = exec(server.setup(), json!({"argv": argv})).await;
        assert_eq!((&answer["fault"], &answer["sent"]), (&json!(fault), &json!(false)), "{answer}");
        assert!(answer["message"].as_str().is_some_and(|text| text.contains(says)), "{answer}");
    }
    let answer = exec(server.setup(), json!({"argv": ["cat"], "stdin": (4 << 20) + 1})).await;
    assert_eq!((&answer["fault"], &answer["sent"]), (&json!("FaultKind::TooLarge"), &json!(false)), "{answer}");
    assert_eq!(server.logins(), 0);
}

#[tokio::test]
async fn standard_input_arrives_whole_and_ends() {
    let Some(server) = Sshd::start() else { return };
    let answer = exec(server.setup(), json!({"argv": ["cat"], "stdin": "a\u{0}b\n"})).await;
    assert_eq!((&answer["status"], &answer["stdout"]), (&json!(0), &json!("a\u{0}b\n")));
    let bytes = 4 << 20;
    let answer = exec(server.setup(), json!({"argv": ["wc", "-c"], "stdin": bytes})).await;
    assert_eq!(answer["stdout"], format!("{bytes}\n"));
    // Both ways at once, more than any buffer between holds.
    let answer = exec(server.setup(), json!({"argv": ["cat"], "stdin": 1 << 20})).await;
    let sum: u64 = (0..1u64 << 20).map(|at| at % 251).sum();
    assert_eq!(answer["stdout"], json!({"bytes": 1 << 20, "sum": sum}));
    // One that reads nothing ends all the same.
    let answer = exec(server.setup(), json!({"argv": ["true"], "stdin": bytes})).await;
    assert_eq!(answer["status"], 0, "{answer}");
}

#[tokio::test]
async fn output_over_the_limit_is_dropped_and_the_command_goes_on() {
    let Some(server) = Sshd::start() else { return };
    let script = "head -c 20000000 /dev/zero | tr '\\0' a; head -c 20000000 /dev/zero | tr '\\0' b >&2; echo done > $0";
    let file = server.file("done");
    let answer = exec(server.setup(), json!({"argv": ["sh", "-c", script, file], "maxOutput": 1000})).await;
    let sum = |byte: u8| json!({"bytes": 1000, "sum": 1000 * u64::from(byte)});
    assert_eq!(answer, json!({"status": 0, "stdout": sum(b'a'), "stderr": sum(b'b'), "truncated": true}));
    assert!(file.exists(), "it was not held up");
    // Exactly the limit is not over it.
    let answer = exec(server.setup(), json!({"argv": ["printf", "12345"], "maxOutput": 5})).await;
    assert_eq!(answer, json!({"status": 0, "stdout": "12345", "stderr": "", "truncated": false}));
    // The host's own limit holds for whoever wishes more.
    let answer =
        exec(server.setup(), json!({"argv": ["head", "-c", "3000000", "/dev/zero"], "maxOutput": u32::MAX})).await;
    assert_eq!(answer["stdout"]["bytes"], 1 << 20);
    assert_eq!(answer["truncated"], true);
}

/// Whether a process lives whose id a command wrote into this file.
async fn ends(what: &str, file: &std::path::Path) {
    let id = std::fs::read_to_string(file).expect("the command wrote its id");
    eventually(what, async || !std::path::Path::new(&format!("/proc/{}", id.trim())).exists()).await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_a_fault_and_its_process_ends() {
    let Some(server) = Sshd::unprivileged() else { return };
    let file = server.file("pid");
    for (script, what) in [
        ("echo $$ > $0; exec sleep 600", "the sleeper ends"),
        ("trap '' TERM; echo $$ > $0; while :; do sleep 1; done", "one that ignores SIGTERM ends"),
    ] {
        let began = Instant::now();
        let wish = json!({"argv": ["sh", "-c", script, file], "timeoutMs": 1000});
        let answer = exec(server.setup(), wish).await;
        assert_eq!((&answer["fault"], &answer["sent"]), (&json!("FaultKind::TimedOut"), &json!(true)), "{answer}");
        let text = answer["message"].as_str().expect("a message");
        assert!(text.contains("connection \"host\"") && text.contains("within 1000 ms"), "{text}");
        // Loose, for a busy machine.
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        ends(what, &file).await;
    }
}

/// To commands of root's sshd passes no signal. Its channel is closed all the same, which ends what writes.
#[tokio::test]
async fn a_command_that_gets_no_signal_loses_its_channel() {
    let Some(server) = Sshd::start() else { return };
    let file = server.file("pid");
    let script = "trap '' TERM; echo $$ > $0; while echo; do sleep 0.1; done";
    let handle = handle_of(server.setup(), json!([{"argv": ["sh", "-c", script, file], "timeoutMs": 500}])).await;
    assert_eq!(told(&handle).await["fault"], "FaultKind::TimedOut");
    ends("what writes to a closed channel ends", &file).await;
    assert_eq!(told(&handle).await["fault"], "FaultKind::TimedOut");
    ends("the second one ends too", &file).await;
}

#[tokio::test]
async fn what_a_command_left_in_the_background_does_not_hide_its_status() {
    let Some(server) = Sshd::start() else { return };
    let file = server.file("pid");
    let script = "sleep 600 & echo $! > $0; echo out; exit 4";
    let answer = exec(server.setup(), json!({"argv": ["sh", "-c", script, file], "timeoutMs": 1000})).await;
    assert_eq!(answer, json!({"status": 4, "stdout": "out\n", "stderr": "", "truncated": true}));
    let id = std::fs::read_to_string(file).expect("its id");
    let killed = std::process::Command::new("kill").args(["-KILL", id.trim()]).status();
    assert!(killed.is_ok_and(|status| status.success()), "it was meant to run on");
}

#[tokio::test]
async fn the_rest_of_the_call_bounds_a_command() {
    let Some(server) = Sshd::unprivileged() else { return };
    let file = server.file("pid");
    let run = json!([{"argv": ["sh", "-c", "echo $$ > $0; exec sleep 600", file]}]);
    let handle = handle_of(server.setup().call_timeout(2), run).await;
    // What reads is only late; what may change the backend has an unknown outcome.
    let error = soon("a call", handle.get(&identity("a", "here"))).await.expect_err("it takes too long");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "CallTimedOut"), "{error}");
    assert!(error.message.contains("still waited for connection \"host\""), "{error}");
    ends("a command of a call that reached its deadline", &file).await;
    let error = soon("a call", handle.create(&request("a", "here"))).await.expect_err("it takes too long");
    assert_eq!(error.kind, ErrorKind::UnknownOutcome, "{error}");
    ends("a command of a create that reached its deadline", &file).await;
}

#[tokio::test]
async fn the_sdk_maps_ends_and_faults() {
    let Some(server) = Sshd::start() else { return };
    let wanted = request("a", "here");
    let create = async |wish: Value| {
        let handle = handle_of(server.setup(), json!([wish])).await;
        soon("a create", handle.create(&wanted)).await
    };
    let made = create(json!({"argv": ["echo", "made"]})).await.expect("it works");
    assert_eq!(made.message.as_deref(), Some("made "));
    let error = create(json!({"argv": ["sh", "-c", "echo no disk >&2; exit 1"]})).await.expect_err("it fails");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::Transient, "CommandFailed"), "{error}");
    assert!(error.message.contains("status 1: no disk"), "{error}");
    let error = create(json!({"argv": ["virsh-no-such"]})).await.expect_err("it fails");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::ConfigMissing, "CommandMissing"), "{error}");
    let error = create(json!({"argv": ["sleep", "60"], "timeoutMs": 300})).await.expect_err("it takes too long");
    assert_eq!((&error.kind, error.reason.as_str()), (&ErrorKind::UnknownOutcome, "TimedOut"), "{error}");
}

#[tokio::test]
async fn allow_rules_hold_the_first_words() {
    let Some(server) = Sshd::start() else { return };
    let setup = || {
        let mut connection = server.connection();
        connection["ssh"]["allow"] = json!([["echo"], ["printf", "%s"]]);
        server.setup().connection("host", connection)
    };
    for argv in [json!(["echo", "a"]), json!(["printf", "%s", "a"])] {
        assert_eq!(exec(setup(), json!({"argv": argv})).await["status"], 0, "{argv}");
    }
    for argv in [json!(["printf", "%d", "1"]), json!(["printf"]), json!(["sh", "-c", "echo"]), json!(["echoes"])] {
        let answer = exec(setup(), json!({"argv": argv})).await;
        assert_eq!(
            (&answer["fault"], &answer["sent"]),
            (&json!("FaultKind::Denied"), &json!(false)),
            "{argv}: {answer}"
        );
        let text = answer["message"].as_str().expect("a message");
        assert!(text.contains(r#"["printf", "%s"]"#) && text.contains("ssh.allow"), "{text}");
    }
}
