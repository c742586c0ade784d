//! The bootstrap: what a new machine runs to become the proxy that was asked for. A template, filled in for each instance.

use super::instance::Request;

/// The one that serves where a Provider brings none: a cloud-config for Debian and Ubuntu.
pub const DEFAULT: &str = include_str!("bootstrap/default.yaml");

/// What a template may name.
const NAMES: [&str; 5] = ["username", "password", "port", "protocol", "must_reach"];

/// A piece of a template.
enum Piece<'t> {
    Text(&'t str),
    Name(&'t str),
}

/// Cuts at `{{name}}`. Whatever else stands in braces is text: cloud-init and shells have braces of their own.
fn pieces(template: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut text, mut from) = (0, 0);
    while let Some(open) = template[from..].find("{{").map(|at| from + at) {
        let name_at = open + 2;
        let len = template[name_at..].bytes().take_while(|b| b.is_ascii_lowercase() || *b == b'_').count();
        let end = name_at + len;
        if len == 0 || !template[end..].starts_with("}}") {
            from = open + 1;
            continue;
        }
        pieces.push(Piece::Text(&template[text..open]));
        pieces.push(Piece::Name(&template[name_at..end]));
        (text, from) = (end + 2, end + 2);
    }
    pieces.push(Piece::Text(&template[text..]));
    pieces
}

/// Checks the names in a template.
///
/// # Errors
/// A text that quotes the first name that is none of ours, and lists those that are.
pub fn check(template: &str) -> Result<(), String> {
    let unknown = pieces(template).into_iter().find_map(|piece| match piece {
        Piece::Name(name) if !NAMES.contains(&name) => Some(name),
        _ => None,
    });
    match unknown {
        None => Ok(()),
        Some(name) => {
            let known = NAMES.map(|name| format!("{{{{{name}}}}}")).join(", ");
            Err(format!("spec.bootstrap names {{{{{name}}}}}, and there is only: {known}"))
        }
    }
}

/// Fills in a template. Each value is a whole YAML scalar, so that no login can become anything but a login; without a login
/// (`auth.mode: none`) user and password are empty.
pub fn render(template: &str, request: &Request) -> String {
    let value = |name: &str| match name {
        "username" => quoted(request.login.as_ref().map_or("", |login| &login.username)),
        "password" => quoted(request.login.as_ref().and_then(|l| l.password.expose_line()).unwrap_or_default()),
        "port" => request.port.to_string(),
        "protocol" => quoted(request.protocol),
        "must_reach" => quoted(&request.must_reach.join(" ")),
        unknown => format!("{{{{{unknown}}}}}"),
    };
    let filled = pieces(template).into_iter().map(|piece| match piece {
        Piece::Text(text) => text.to_owned(),
        Piece::Name(name) => value(name),
    });
    filled.collect()
}

/// A double-quoted scalar: JSON's strings are YAML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use serde_json::{Value, json};

    use super::*;
    use crate::model::instance::{Identity, Owner};
    use crate::model::login::Login;
    use crate::model::proxy::ProxySpec;

    fn mk_request(username: &str, password: &str, protocol: &str) -> Request {
        let spec: ProxySpec =
            serde_json::from_value(json!({"provider": "p", "port": 3128, "protocol": protocol})).unwrap();
        let owner =
            Owner { installation: "i".into(), proxy_uid: "u".into(), namespace: "default".into(), name: "a".into() };
        let login = Login { username: username.into(), password: password.to_owned().into() };
        let must_reach = vec!["judge.example:8082".into(), "10.0.0.1:443".into()];
        Request::new(&spec, Identity::new(owner, 0), Some(login), must_reach, None)
    }

    fn file(config: &Value, path: &str) -> Value {
        let files = config["write_files"].as_array().unwrap();
        files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path}: {config}"))["content"].clone()
    }

    #[test]
    fn the_default_is_a_cloud_config_that_gives_back_every_login_as_it_was() {
        for protocol in ["http", "socks5"] {
            for password in [
                "plain24Letters",
                "a'b\"c\\d",
                "x: y # z",
                "{{username}}",
                "- ü\t\u{1F600}",
                "%25$HOME`id`",
                "1e3",
                "null",
            ] {
                let request = mk_request("user:\"1\"", password, protocol);
                let text = render(DEFAULT, &request);
                assert!(text.starts_with("#cloud-config\n"));
                let config: Value = serde_saphyr::from_str(&text).unwrap();
                assert_eq!(file(&config, "/run/proxy-operator/username"), "user:\"1\"");
                assert_eq!(file(&config, "/run/proxy-operator/password"), password);
                assert_eq!(file(&config, "/run/proxy-operator/protocol"), protocol);
                assert_eq!(file(&config, "/run/proxy-operator/must-reach"), "judge.example:8082 10.0.0.1:443");
                assert_eq!(file(&config, "/run/proxy-operator/port"), "3128");
                assert_eq!(config["runcmd"], json!([["/run/proxy-operator/set-up"]]));
            }
        }
        let open = Request { login: None, ..mk_request("", "", "http") };
        let config: Value = serde_saphyr::from_str(&render(DEFAULT, &open)).unwrap();
        assert_eq!(file(&config, "/run/proxy-operator/password"), "");
    }

    #[test]
    fn the_default_stays_below_what_backends_take_as_user_data() {
        // 16 KiB is the least of them.
        assert!(render(DEFAULT, &mk_request("u", "p", "http")).len() < 8 << 10);
    }

    /// Runs the script of the default in a folder that stands for the machine, where both proxies are installed already.
    fn set_up(request: &Request) -> (tempfile::TempDir, String) {
        let config: Value = serde_saphyr::from_str(&render(DEFAULT, request)).unwrap();
        let root = tempfile::tempdir().unwrap();
        for written in config["write_files"].as_array().unwrap() {
            let path = root.path().join(written["path"].as_str().unwrap().trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, written["content"].as_str().unwrap()).unwrap();
        }
        let script = file(&config, "/run/proxy-operator/set-up").as_str().unwrap().to_owned();
        std::fs::create_dir_all(root.path().join("etc/tinyproxy")).unwrap();
        // The machine's commands, each of which says how it was called.
        let shim = "systemctl() { echo \"systemctl $*\"; }\nuseradd() { echo \"useradd $*\"; }\n\
                    id() { false; }\nip() { echo 'default via 10.0.0.1 dev eth7 proto dhcp'; }\nchpasswd() { echo \"chpasswd $(cat)\"; }\n\
                    command() { true; }\n";
        let script = format!("ROOT={}\n{shim}{script}", root.path().display());
        let mut shell =
            Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (root, String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn the_script_of_the_default_writes_what_tinyproxy_and_dante_read() {
        let (root, said) = set_up(&mk_request("px1", "abc$HOME", "http"));
        let config = std::fs::read_to_string(root.path().join("etc/tinyproxy/tinyproxy.conf")).unwrap();
        for line in ["Port 3128", "BasicAuth px1 abc$HOME", "ConnectPort 443", "ConnectPort 8082"] {
            assert!(config.lines().any(|l| l == line), "{line}: {config}");
        }
        assert_eq!(config.matches("ConnectPort 443").count(), 1, "{config}");
        assert!(!config.contains("ConnectPort 25"));
        let filter = std::fs::read_to_string(root.path().join("etc/tinyproxy/filter")).unwrap();
        assert!(filter.contains(":25/") && said.contains("systemctl restart tinyproxy"), "{said}");

        let (root, said) = set_up(&mk_request("px1", "abc$HOME", "socks5"));
        let config = std::fs::read_to_string(root.path().join("etc/danted.conf")).unwrap();
        assert!(config.contains("internal: 0.0.0.0 port = 3128") && config.contains("external: eth7"), "{config}");
        assert!(config.contains("port = 25") && config.contains("socksmethod: username"), "{config}");
        assert!(said.contains("chpasswd px1:abc$HOME") && !config.contains("abc"), "{said}");
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_those_that_are_and_other_braces_are_text() {
        assert_eq!(check(DEFAULT), Ok(()));
        assert_eq!(check("a {{ v1.region }} ${{x}y} {{}} {{Port}} {{{port}}} {{"), Ok(()));
        let refused = check("password: {{pasword}}").unwrap_err();
        assert!(refused.contains("{{pasword}}") && refused.contains("{{password}}"), "{refused}");
        let text = render("{{{port}}} {{ port }} {{port}}{{port}}", &mk_request("u", "p", "http"));
        assert_eq!(text, "{3128} {{ port }} 31283128");
    }
}
