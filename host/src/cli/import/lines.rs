//! The lines of a list of proxies. No error quotes a line: it may hold a password.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use url::Url;

/// One proxy of a list; not `Debug`, for it holds a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub host: String,
    pub port: u16,
    pub protocol: &'static str,
    /// `user:password`.
    pub login: Option<String>,
    pub location: Option<String>,
}

/// Reads a list; empty lines and those that begin with `#` are passed over.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let lines = text.trim_start_matches('\u{feff}').lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
    let columns = lines.peek().and_then(|(_, line)| header(line));
    if columns.is_some() {
        lines.next();
    }
    let (mut entries, mut errors, mut seen) = (Vec::new(), Vec::new(), HashMap::new());
    for (at, line) in lines {
        let read = match &columns {
            Some(columns) => row(columns, line),
            None => plain(line),
        };
        match read {
            Err(why) => errors.push(format!("line {at}: {why}")),
            Ok(entry) => match seen.insert((entry.host.clone(), entry.port, entry.login.clone()), at) {
                Some(first) => errors.push(format!("line {at}: the same proxy as in line {first}; remove one")),
                None => entries.push(entry),
            },
        }
    }
    if entries.is_empty() && errors.is_empty() {
        errors.push("it holds no proxy".into());
    }
    if errors.is_empty() { Ok(entries) } else { Err(errors.join("\n  ")) }
}

/// The columns of a CSV file, by its first line.
fn header(line: &str) -> Option<Vec<String>> {
    let columns: Vec<String> = cells(line)?.into_iter().map(|cell| cell.trim().to_lowercase()).collect();
    ["host", "port"].iter().all(|needed| columns.iter().any(|column| column == needed)).then_some(columns)
}

/// The cells of a line of CSV: with quotes where they hold commas.
fn cells(line: &str) -> Option<Vec<String>> {
    let (mut cells, mut quoted, mut chars) = (vec![String::new()], false, line.chars().peekable());
    while let Some(c) = chars.next() {
        let cell = cells.last_mut()?;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => cell.push(other),
        }
    }
    (!quoted).then_some(cells)
}

fn row(columns: &[String], line: &str) -> Result<Entry, String> {
    let cells = cells(line).ok_or("a quote is not closed")?;
    if cells.len() != columns.len() {
        return Err(format!("{} cells where the header has {}", cells.len(), columns.len()));
    }
    let cell = |names: &[&str]| {
        let found = columns.iter().position(|column| names.contains(&column.as_str()));
        found.and_then(|at| cells.get(at)).filter(|cell| !cell.is_empty()).map(String::as_str)
    };
    let login = match (cell(&["user", "username"]), cell(&["password"])) {
        (None, None) => None,
        (Some(user), Some(password)) => Some((user, password)),
        _ => return Err("a user goes with a password".into()),
    };
    let scheme = cell(&["protocol"]).unwrap_or("http");
    let mut entry = entry(cell(&["host"]).unwrap_or_default(), cell(&["port"]).unwrap_or_default(), scheme, login)?;
    entry.location = cell(&["location"]).map(str::to_owned);
    Ok(entry)
}

fn plain(line: &str) -> Result<Entry, String> {
    let forms = "write HOST:PORT, HOST:PORT:USER:PASSWORD, USER:PASSWORD@HOST:PORT or a URL";
    if line.contains("://") {
        return of_url(line);
    }
    // A password may hold both signs: what ends in a port after the last @ is the form with @ in front.
    if let Some((login, address)) = line.rsplit_once('@')
        && let Some((host, port)) = address.rsplit_once(':')
        && port.parse::<u16>().is_ok()
    {
        return entry(host, port, "http", Some(login.split_once(':').ok_or(forms)?));
    }
    let (host, rest) = match line.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        Some(parts) => parts,
        None => line.split_once(':').ok_or(forms)?,
    };
    match rest.split_once(':') {
        None => entry(host, rest, "http", None),
        Some((port, login)) => entry(host, port, "http", Some(login.split_once(':').ok_or(forms)?)),
    }
}

fn of_url(line: &str) -> Result<Entry, String> {
    let url = Url::parse(line).map_err(|e| format!("no URL ({e})"))?;
    let decoded = |text: &str| {
        percent_decode_str(text).decode_utf8().map(|t| t.into_owned()).map_err(|_| "its login is not UTF-8".to_owned())
    };
    let (user, password) = (decoded(url.username())?, decoded(url.password().unwrap_or_default())?);
    let login = match (user.is_empty(), url.password()) {
        (true, None) => None,
        (false, Some(_)) => Some((user.as_str(), password.as_str())),
        _ => return Err("a user goes with a password".into()),
    };
    let port = url.port_or_known_default().ok_or("the URL names no port")?;
    entry(url.host_str().unwrap_or_default(), &port.to_string(), url.scheme(), login)
}

fn entry(host: &str, port: &str, scheme: &str, login: Option<(&str, &str)>) -> Result<Entry, String> {
    let protocol = match scheme {
        "http" => "http",
        "socks5" | "socks5h" => "socks5",
        _ => return Err("its protocol is neither http nor socks5".into()),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || !host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:_".contains(c)) {
        return Err("the host is no name or address".into());
    }
    let port = port.parse().ok().filter(|port| *port != 0).ok_or("the port is no number from 1 to 65535")?;
    let login = login.map(|(user, password)| {
        if user.is_empty() || password.is_empty() || user.contains(':') {
            return Err("a login is USER:PASSWORD, neither empty, with no ':' in the user".to_owned());
        }
        Ok(format!("{user}:{password}"))
    });
    Ok(Entry { host: host.to_owned(), port, protocol, login: login.transpose()?, location: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> (String, u16, &'static str, Option<String>) {
        let entry = parse(line).unwrap_or_else(|e| panic!("{line}: {e}")).remove(0);
        (entry.host, entry.port, entry.protocol, entry.login)
    }

    #[test]
    fn each_form_is_read() {
        for (line, host, port, protocol, login) in [
            ("10.0.0.1:3128", "10.0.0.1", 3128, "http", None),
            ("10.0.0.1:3128:u:p:q", "10.0.0.1", 3128, "http", Some("u:p:q")),
            ("10.0.0.1:3128:u:p@q", "10.0.0.1", 3128, "http", Some("u:p@q")),
            ("u:p@q@example.net:80", "example.net", 80, "http", Some("u:p@q")),
            ("socks5://u:p%40q@example.net:1080", "example.net", 1080, "socks5", Some("u:p@q")),
            ("http://example.net:8080", "example.net", 8080, "http", None),
            ("[2001:db8::1]:3128:u:p", "2001:db8::1", 3128, "http", Some("u:p")),
            ("host,port,user,password\nexample.net,81,u,\"p,q\"", "example.net", 81, "http", Some("u:p,q")),
        ] {
            assert_eq!(one(line), (host.into(), port, protocol, login.map(str::to_owned)), "{line}");
        }
    }

    #[test]
    fn errors_name_the_line_and_no_password() {
        for (text, says) in [
            ("# none\n\n", "it holds no proxy"),
            ("a:1\nb:x:u:hunter2", "line 2: the port is no number from 1 to 65535"),
            ("a:1:hunter2", "line 1: write HOST:PORT"),
            ("ftp://u:hunter2@a:1", "line 1: its protocol is neither http nor socks5"),
            ("http://u@a:1", "line 1: a user goes with a password"),
            ("a:1:u:hunter2\n\na:1:u:hunter2", "line 3: the same proxy as in line 1"),
            ("host,port,password\na,1", "line 2: 2 cells where the header has 3"),
            ("host,port,password\na,1,hunter2", "line 2: a user goes with a password"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.contains(says) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
