//! Who is trusted over SSH: pinned host keys, and the operator's own keys.

use std::os::unix::fs::symlink;

use proxy_operator::model::provider::ProviderSpec;
use proxy_operator::plugin::grants::Grants;
use proxy_operator::store::local::SecretFiles;
use proxy_operator_tests::plugins::logs::Logs;
use proxy_operator_tests::plugins::{Setup, loaded, soon};
use proxy_operator_tests::sshd::{KINDS, Sshd, client_key, pair};
use serde_json::{Value, json};

use crate::ssh::{exec, handle_of, told};

/// The fault of a login, before which nothing was sent.
async fn fault(setup: Setup, kind: &str) -> String {
    let answer = exec(setup, json!({"argv": ["true"]})).await;
    let expected = json!(format!("FaultKind::{kind}"));
    assert_eq!((&answer["fault"], &answer["sent"]), (&expected, &json!(false)), "{answer}");
    let text = answer["message"].as_str().expect("a message").to_owned();
    assert!(text.contains("connection \"host\""), "{text}");
    text
}

fn fingerprint(public: &str) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("key.pub");
    std::fs::write(&file, public).expect("a file");
    let told = std::process::Command::new("ssh-keygen").arg("-lf").arg(file).output().expect("ssh-keygen");
    let told = String::from_utf8(told.stdout).expect("text");
    told.split(' ').nth(1).expect("a fingerprint").to_owned()
}

fn pinned(server: &Sshd, known_hosts: &str) -> Setup {
    let setup = server.setup();
    setup.vault.set("known-hosts", known_hosts);
    setup
}

async fn works(setup: Setup, what: &str) {
    let answer = exec(setup, json!({"argv": ["true"]})).await;
    assert_eq!(answer["status"], 0, "{what}: {answer}");
}

#[tokio::test]
async fn one_pinned_key_of_any_type_is_enough() {
    let Some(server) = Sshd::start() else { return };
    for kind in KINDS {
        works(pinned(&server, &server.pin(kind)), kind).await;
    }
    let with_noise = format!(
        "# ours\r\n\r\nother.example {}\r\n{}",
        server.host_key("rsa"),
        server.pin("ecdsa").replace('\n', "\r\n")
    );
    works(pinned(&server, &with_noise), "comments and CRLF").await;
    let list = format!("a.example,[127.0.0.1]:{},b.example {}", server.port, server.host_key("rsa"));
    works(pinned(&server, &list), "a list, without a line end").await;
    works(pinned(&server, &format!("[127.0.0.*]:{} {}", server.port, server.host_key("rsa"))), "a wildcard").await;
}

#[tokio::test]
async fn hashed_lines_count_as_ssh_keygen_writes_them() {
    let Some(server) = Sshd::start() else { return };
    let file = server.file("hashed");
    std::fs::write(&file, KINDS.map(|kind| server.pin(kind)).concat()).expect("a file");
    let hashed =
        std::process::Command::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(&file).output().expect("ssh-keygen");
    assert!(hashed.status.success());
    let text = std::fs::read_to_string(file).expect("the hashed file");
    assert!(text.starts_with("|1|") && !text.contains("127.0.0.1"), "{text}");
    works(pinned(&server, &text), "hashed").await;
}

#[tokio::test]
async fn a_server_without_a_pinned_key_is_unknown_and_the_text_says_how_to_pin_it() {
    let Some(server) = Sshd::start() else { return };
    for known_hosts in ["", "# nothing\n", &format!("127.0.0.1 {}\n", server.host_key("ed25519"))] {
        let text = fault(pinned(&server, known_hosts), "HostKeyUnknown").await;
        let port = server.port;
        let (place, print) = (format!("{}@127.0.0.1:{port}", server.user), fingerprint(server.host_key("ed25519")));
        for part in [&place, "ssh-ed25519", &print, &format!("ssh-keyscan -p {port} 127.0.0.1")] {
            assert!(text.contains(part), "{text} does not say {part}");
        }
    }
    let authority = format!("@cert-authority * {}", server.host_key("rsa"));
    assert!(fault(pinned(&server, &authority), "HostKeyUnknown").await.contains("line 1 is a @cert-authority"));
    // What the text advises works.
    let scan = std::process::Command::new("ssh-keyscan")
        .args(["-p", &server.port.to_string(), "127.0.0.1"])
        .output()
        .expect("ssh-keyscan");
    works(pinned(&server, &String::from_utf8(scan.stdout).expect("text")), "ssh-keyscan").await;
}

#[tokio::test]
async fn a_changed_host_key_is_never_to_be_scanned_for() {
    let Some(mut server) = Sshd::start() else { return };
    let old = KINDS.map(|kind| (kind, server.pin(kind), fingerprint(server.host_key(kind))));
    server.change_host_keys();
    for (kind, pin, was) in &old {
        let text = fault(pinned(&server, pin), "HostKeyChanged").await;
        let is = fingerprint(server.host_key(kind));
        assert!(text.contains(was) && text.contains(&is), "{text} names neither {was} nor {is}");
        assert!(!text.contains("ssh-keyscan"), "{text}");
    }
    assert_eq!(server.logins(), 0);
}

#[tokio::test]
async fn a_server_that_lost_the_pinned_type_has_changed() {
    let Some(server) = Sshd::with("HostKeyAlgorithms ssh-ed25519") else { return };
    let text = fault(pinned(&server, &server.pin("rsa")), "HostKeyChanged").await;
    assert!(text.contains("ssh-ed25519") && text.contains(&fingerprint(server.host_key("rsa"))), "{text}");
}

#[tokio::test]
async fn a_revoked_host_key_is_refused() {
    let Some(server) = Sshd::start() else { return };
    let revoked = format!("{}@revoked * {}\n", server.pin("ed25519"), server.host_key("ed25519"));
    let text = fault(pinned(&server, &revoked), "HostKeyChanged").await;
    assert!(text.contains("@revoked"), "{text}");
    // Another key of it is as good as before.
    works(pinned(&server, &(revoked + &server.pin("rsa"))), "another type").await;
}

#[tokio::test]
async fn client_keys_of_every_type_and_format_log_in() {
    let Some(server) = Sshd::start() else { return };
    for kind in [&["-t", "ed25519"][..], &["-t", "ecdsa", "-b", "384"], &["-t", "rsa", "-b", "2048"]] {
        for format in ["RFC4716", "PEM", "PKCS8"] {
            if kind.contains(&"ed25519") && format != "RFC4716" {
                // ssh-keygen has no other format for it.
                continue;
            }
            let key = pair(&[kind, &["-m", format]].concat());
            server.authorize(&key.public);
            let setup = server.setup();
            setup.vault.set("ssh-key", key.private.trim_end());
            works(setup, &format!("{kind:?} {format}")).await;
        }
    }
    // Signed with SHA-2, never with SHA-1.
    let server = Sshd::with("PubkeyAcceptedAlgorithms rsa-sha2-256").expect("one ran already");
    let key = pair(&["-t", "rsa"]);
    server.authorize(&key.public);
    let setup = server.setup();
    setup.vault.set("ssh-key", &key.private.replace('\n', "\r\n"));
    works(setup, "rsa-sha2-256").await;
}

#[tokio::test]
async fn a_refused_login_names_the_key_and_what_to_do() {
    let Some(server) = Sshd::start() else { return };
    server.authorize("");
    let text = fault(server.setup(), "AuthRefused").await;
    for part in [fingerprint(&client_key().public), "authorized_keys".into(), server.user.clone()] {
        assert!(text.contains(&part), "{text} does not say {part}");
    }
    let text = fault(
        Sshd::with("AuthenticationMethods publickey,password\nPasswordAuthentication yes")
            .expect("one ran already")
            .setup(),
        "AuthRefused",
    )
    .await;
    assert!(text.contains("wants more (password)"), "{text}");
}

#[tokio::test]
async fn keys_and_pins_of_no_use_are_told_before_a_plugin_is_called() {
    let Some(server) = Sshd::start() else { return };
    let protected = {
        let file = server.file("protected");
        let made = std::process::Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "secret", "-f"])
            .arg(&file)
            .output();
        assert!(made.expect("ssh-keygen").status.success());
        std::fs::read_to_string(file).expect("the key")
    };
    for (key, says) in [
        (protected.as_str(), "passphrase"),
        (&client_key().public, "public key"),
        ("nonsense", "no private key"),
        ("", "empty"),
    ] {
        let setup = server.setup();
        setup.vault.set("ssh-key", key);
        let error = probe(&setup).await.expect_err(says).to_string();
        for part in [says, "connection \"host\"", "ssh.key", "Secret ssh-key"] {
            assert!(error.contains(part), "{error} does not say {part}");
        }
        // A key that turns bad later is told by the call.
        let answer = exec(setup, json!({"argv": ["true"]})).await;
        assert_eq!((&answer["fault"], &answer["sent"]), (&json!("FaultKind::Credential"), &json!(false)), "{answer}");
    }
    let missing = Setup::new().connection("host", server.connection());
    assert!(probe(&missing).await.expect_err("missing").to_string().contains("Secret \"ssh-key\" is missing"));
    probe(&server.setup()).await.expect("all is there");
    assert_eq!(server.logins(), 0, "a probe asks nobody");
}

async fn probe(setup: &Setup) -> Result<(), proxy_operator::plugin::grants::SecretError> {
    let spec: ProviderSpec = setup.spec();
    let grants = Grants::new(&spec, std::sync::Arc::new(setup.vault.clone())).expect("a good connection");
    soon("a probe", grants.probe()).await
}

#[tokio::test]
async fn a_rotated_key_or_pin_is_used_by_the_next_command() {
    let Some(server) = Sshd::start() else { return };
    let setup = server.setup();
    let vault = setup.vault.clone();
    let handle = handle_of(setup, json!([{"argv": ["true"]}])).await;
    assert_eq!(told(&handle).await["status"], 0);
    let next = pair(&["-t", "ed25519"]);
    server.authorize(&next.public);
    vault.set("ssh-key", &next.private);
    assert_eq!(told(&handle).await["status"], 0);
    assert_eq!(server.logins(), 2, "{}", server.log());
    // A server that is no longer pinned is not talked to, although a connection to it is open.
    vault.set("known-hosts", "");
    assert_eq!(told(&handle).await["fault"], "FaultKind::HostKeyUnknown");
    vault.set("known-hosts", &server.pin("rsa"));
    assert_eq!(told(&handle).await["status"], 0);
    assert_eq!(server.logins(), 3);
}

/// As the kubelet mounts a Secret: files are links through `..data`, which is replaced at once.
#[tokio::test]
async fn pins_in_a_mounted_file_are_read_for_each_command() {
    let Some(server) = Sshd::start() else { return };
    let mount = tempfile::tempdir().expect("a folder");
    let at = |name: &str| mount.path().join(name);
    let mut version = 0;
    let mut publish = |pins: &str| {
        version += 1;
        let folder = format!("..{version}");
        std::fs::create_dir(at(&folder)).expect("a folder");
        std::fs::write(at(&folder).join("known_hosts"), pins).expect("a file");
        symlink(&folder, at("..data_tmp")).expect("a link");
        std::fs::rename(at("..data_tmp"), at("..data")).expect("replaced");
    };
    publish(&server.pin("ed25519"));
    symlink("..data/known_hosts", at("known_hosts")).expect("a link");
    std::fs::write(at("key"), &client_key().private).expect("a file");

    let mut connection = server.connection();
    connection["ssh"]["key"] = json!({"file": at("key")});
    connection["ssh"]["knownHosts"] = json!({"file": at("known_hosts")});
    let setup = Setup::new().connection("host", connection).config(json!({"run": [{"argv": ["true"]}]}));
    let files = std::sync::Arc::new(SecretFiles::new(vec![mount.path().to_owned()]));
    let handle = setup.bind_to(loaded("exec").await, files);
    assert_eq!(told(&handle).await["status"], 0);
    assert_eq!(told(&handle).await["status"], 0);
    assert_eq!(server.logins(), 1, "what did not change makes no new connection");
    publish(&format!("other.example {}\n", server.host_key("ed25519")));
    assert_eq!(told(&handle).await["fault"], "FaultKind::HostKeyUnknown");
    publish(&server.pin("rsa"));
    assert_eq!(told(&handle).await["status"], 0);
    assert_eq!(server.logins(), 2, "{}", server.log());
    std::fs::remove_file(at("known_hosts")).expect("removed");
    let answer = told(&handle).await;
    assert_eq!((&answer["fault"], &answer["sent"]), (&json!("FaultKind::Credential"), &json!(false)), "{answer}");
    let text = answer["message"].as_str().expect("a message");
    assert!(text.contains(&at("known_hosts").display().to_string()), "{text}");
}

#[tokio::test]
async fn no_log_line_and_no_fault_shows_a_key() {
    let Some(server) = Sshd::start() else { return };
    let (logs, _catching) = Logs::catch();
    let secret: String = client_key().private.lines().filter(|line| !line.starts_with("---")).collect();
    let mut all: Vec<Value> = vec![exec(server.setup(), json!({"argv": ["true"]})).await];
    server.authorize("");
    all.push(exec(server.setup(), json!({"argv": ["true"]})).await);
    let broken = server.setup();
    broken.vault.set("ssh-key", &client_key().private.replace("AAAA", "AAAB"));
    all.push(exec(broken, json!({"argv": ["true"]})).await);
    assert_eq!(all[2]["fault"], "FaultKind::Credential", "{all:?}");
    let text = logs.text() + &format!("{all:?}");
    assert!(text.contains("connected over SSH"), "{text}");
    for at in (0..secret.len() - 16).step_by(8) {
        // The beginning of every OpenSSH key is the same, and its public half is no secret.
        let part = &secret[at..at + 16];
        assert!(
            client_key().public.contains(part) || at < 64 || !text.contains(part),
            "{part} of the key stands in {text}"
        );
    }
}
