//! The provider that `plugin new` writes, with a switch for each rule that it can break. A patch that fits no longer fails
//! the build.

/// Where a rule is kept, and how it reads with the switch. The name is that of the kit's case.
const PATCHES: &[(&str, &str)] = &[
    // describe and validate
    ("{{name}}", "rulebreaker"),
    (
        "        Config::read(config, request).map(drop)\n",
        r#"        if broken("validate-pure") {
            time::now();
        }
        if broken("validate-accepts") {
            return Err(Invalid::field("/size", "never"));
        }
        Config::read(config, request).map(drop)
"#,
    ),
    (
        "        Invalid::unless_empty(errors)?;\n        Ok(config)\n",
        r#"        if broken("validate-every-field") {
            errors.truncate(1);
        }
        Invalid::unless_empty(errors)?;
        Ok(config)
"#,
    ),
    // place
    (
        "        let wanted = |region: &Region| {\n",
        r#"        if broken("place-reads-only") {
            let _ = http::delete(API, "/v1/regions/north/machines/none").send();
        }
        let wanted = |region: &Region| {
"#,
    ),
    ("format!(\"{}@{account}\", region.name)", "place_name(&region.name, &account)"),
    ("format!(\"{}@{account}\", self.region)", "place_name(&self.region, account)"),
    (
        "        let parts =\n",
        r#"        if broken("place-names-the-backend") {
            return Ok(Self { region: identity.placement.clone(), account: account()?.account });
        }
        let parts =
"#,
    ),
    (
        "            .find(|place| !avoid.contains(place))\n",
        "            .find(|place| broken(\"place-respects-avoid\") || !avoid.contains(place))\n",
    ),
    // create
    (
        "        place.check()?;\n        let owner = identity.owner.clone();\n",
        r#"        if !broken("create-at-its-placement") {
            place.check()?;
        }
        if broken("deadline-kept") {
            let start = time::monotonic();
            while time::monotonic() - start < std::time::Duration::from_millis(1200) {}
        }
        if broken("secrets-nowhere") {
            log::info(&format!("login {:?}", request.login), &[]);
        }
        if broken("create-tags-first") {
            tag_late(&place.path(identity), identity);
        }
        let owner = identity.owner.clone();
"#,
    ),
    (
        "            .send()?\n            .ok()?;\n        Ok(place.ours(&answer, identity)?.into_instance(&place.account))\n",
        r#"            .header("x-request-id", &request_id(identity));
        let answer = if broken("create-answer-lost") { answer.read_only() } else { answer }.send()?.ok()?;
        let reply = answer.status;
        let mut machine = match broken("create-foreign") {
            true => answer.json::<Machine>()?,
            false => place.ours(&answer, identity)?,
        };
        if broken("create-does-not-wait") {
            for _ in 0..50 {
                if machine.state != "booting" {
                    break;
                }
                machine = place.machine(identity)?.unwrap_or(machine);
            }
        }
        if broken("create-twice-at-once") && identity.provider_id.is_none() && reply == 200 && machine.state == "booting" {
            return Err(Error::internal("another create is at it"));
        }
        let mut instance = machine.into_instance(&place.account);
        if broken("create-reaches-running") {
            instance.addresses.clear();
        }
        if broken("create-repeated") {
            instance.backend_id = Some(format!("{:?}", random::bytes(8)));
        }
        // So that get and delete know the switch when the config has lost it.
        instance.continuation = Some(SWITCH.get().cloned().unwrap_or_default());
        Ok(instance)
"#,
    ),
    (
        "instance_name(identity))\n",
        r#"instance_name(&Identity {
            incarnation: if broken("incarnations-differ") { 0 } else { identity.incarnation },
            ..identity.clone()
        }))
"#,
    ),
    // get and delete
    (
        "    fn machine(&self, identity: &Identity) -> Result<Option<Machine>, Error> {\n        self.check()?;\n",
        r#"    fn machine(&self, identity: &Identity) -> Result<Option<Machine>, Error> {
        if !at("get", "get-other-backend") && !at("delete", "delete-other-backend") {
            self.check()?;
        }
"#,
    ),
    (
        "        self.ours(&answer.ok()?, identity).map(Some)\n",
        r#"        let answer = answer.ok()?;
        if at("get", "get-foreign") || at("delete", "delete-foreign") {
            return answer.json().map(Some);
        }
        self.ours(&answer, identity).map(Some)
"#,
    ),
    (
        "        Ok(match place.machine(identity)? {\n            Some(machine) => Presence::Present(machine.into_instance(&place.account)),\n",
        r#"        if broken("get-changes-nothing") {
            let _ = http::delete(API, "/v1/regions/north/machines/none").send();
        }
        if broken("get-after-config-change") && !_config.contains("sizes") {
            return Err(Error::invalid_spec("/config/sizes", "it is needed"));
        }
        let found = match place.machine(identity) {
            Err(error) if broken("backend-unreachable") && error.reason.as_deref() == Some("Unreachable") => None,
            Err(error) if broken("backend-refuses") && error.kind == ErrorKind::Unauthorized => None,
            Err(error) if broken("connection-missing") && error.reason.as_deref() == Some("ConnectionNotGranted") => None,
            found => found?,
        };
        Ok(match found {
            None if broken("get-absent-before-create") && identity.provider_id.is_none() => {
                let id = instance_name(identity);
                Presence::Present(Instance::new(id, &identity.placement, State::Creating))
            }
            Some(_) if broken("continuation-lost") && identity.provider_id.is_none() => {
                let id = instance_name(identity);
                Presence::Present(Instance::new(id, &identity.placement, State::Unknown("forgotten".into())))
            }
            Some(machine) if broken("leftovers-are-present") && machine.state == "booting" => Presence::Absent,
            Some(machine) => Presence::Present(machine.into_instance(&place.account)),
"#,
    ),
    (
        "        let Some(machine) = place.machine(identity)? else { return Ok(Deletion::Gone) };\n",
        r#"        if broken("delete-identity-only") && !_config.contains("sizes") {
            return Err(Error::invalid_spec("/config/sizes", "it is needed"));
        }
        let Some(machine) = place.machine(identity)? else {
            if broken("delete-twice") && identity.provider_id.is_none() {
                return Ok(Deletion::InProgress(Progress { message: None, poll_after_ms: None, continuation: None }));
            }
            return Ok(Deletion::Gone);
        };
        if broken("delete-while-creating") && machine.state == "booting" {
            return Ok(Deletion::Gone);
        }
"#,
    ),
    (
        "            let answer = http::delete(API, place.path(identity)).send()?;\n",
        r#"            let answer = match http::delete(API, place.path(identity)).send() {
                Err(_) if broken("delete-answer-lost") => return Ok(Deletion::Gone),
                answer => answer?,
            };
"#,
    ),
    (
        "        // Gone is only what the next call does not find.\n",
        r#"        if broken("delete-until-gone") {
            return Ok(Deletion::Gone);
        }
"#,
    ),
    // list-instances and check
    (
        "        let Listing { machines, next } = call.send()?.ok()?.json()?;\n",
        r#"        let Listing { machines, next } = match call.send()?.ok() {
            Err(_) if broken("list-whole-or-error") => return Ok(Page::empty()),
            answer => answer?.json()?,
        };
        let next = next.filter(|_| !broken("list-complete"));
"#,
    ),
    (
        "query(\"installation\", installation);\n",
        "query(if broken(\"list-own-installation\") { \"all\" } else { \"installation\" }, installation);\n",
    ),
    (
        "filter(|machine| machine.owner.installation == installation);\n",
        "filter(|one| broken(\"list-own-installation\") || one.owner.installation == installation);\n",
    ),
    (
        "        let regions = account()?.regions;\n",
        r#"        if broken("check-findings") {
            for _ in 0..3 {
                account()?;
            }
        }
        let regions = account()?.regions;
"#,
    ),
    // What is told
    (
        "            other => State::Unknown(format!(\"the API calls it {other}\")),\n",
        r#"            _ if broken("unknown-state") => State::Running,
            other => State::Unknown(format!("the API calls it {other}")),
"#,
    ),
    (
        "            instance.poll_after_ms = Some(1000);\n        }\n",
        r#"            instance.poll_after_ms = Some(if broken("poll-after-bounds") { 1 } else { 1000 });
        }
        if broken("messages-stable") {
            instance.message = Some(format!("drawn {:?}", random::bytes(8)));
        }
"#,
    ),
    ("export_provider!(Machines);\n", SWITCHED),
];

/// The provider behind the switch: `config.sizes.break`, or what `create` left of it.
const SWITCHED: &str = r#"
static SWITCH: std::sync::OnceLock<String> = std::sync::OnceLock::new();
static FUNCTION: std::sync::OnceLock<&str> = std::sync::OnceLock::new();

fn broken(rule: &str) -> bool {
    SWITCH.get().is_some_and(|broken| broken == rule)
}

fn at(function: &str, rule: &str) -> bool {
    FUNCTION.get() == Some(&function) && broken(rule)
}

fn switch(function: &'static str, config: &str, identity: Option<&Identity>) {
    let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    let left = identity.and_then(|identity| identity.continuation.clone());
    if let Some(rule) = config["sizes"]["break"].as_str().map(str::to_owned).or(left) {
        let _ = SWITCH.set(rule);
    }
    let _ = FUNCTION.set(function);
}

fn place_name(region: &str, account: &str) -> String {
    match broken("place-names-the-backend") {
        true => region.to_owned(),
        false => format!("{region}@{account}"),
    }
}

fn request_id(identity: &Identity) -> String {
    match broken("names-from-identity") {
        true => format!("{:?}", random::bytes(8)),
        false => format!("{}-{}", instance_name(identity), identity.attempt),
    }
}

/// Makes it without tags, and tags it with a second request.
fn tag_late(path: &str, identity: &Identity) {
    let send = |method: &str, owner: serde_json::Value| {
        let body = json!({"owner": owner, "incarnation": identity.incarnation});
        let request = bindings::crawl::provider::http::HttpRequest {
            method: method.into(),
            path: path.into(),
            query: vec![],
            headers: vec![],
            body: Some(body.to_string().into_bytes()),
            timeout_ms: 1000,
        };
        let _ = bindings::crawl::provider::http::send(API, &request);
    };
    let owner = &identity.owner;
    send("PUT", json!({"installation": "", "proxyUid": "", "namespace": "", "name": ""}));
    let tags = json!({"installation": owner.installation, "proxyUid": owner.proxy_uid, "namespace": "", "name": ""});
    send("PATCH", tags);
}

struct Switched;

impl Provider for Switched {
    fn describe() -> Description {
        Machines::describe()
    }

    fn validate(config: &str, request: Option<&Request>) -> Result<(), Invalid> {
        switch("validate", config, None);
        Machines::validate(config, request)
    }

    fn place(config: &str, request: &Request, avoid: &[String]) -> Result<String, Error> {
        switch("place", config, None);
        Machines::place(config, request, avoid)
    }

    fn create(config: &str, request: &Request) -> Result<Instance, Error> {
        switch("create", config, None);
        Machines::create(config, request)
    }

    fn get(config: &str, identity: &Identity) -> Result<Presence, Error> {
        switch("get", config, Some(identity));
        Machines::get(config, identity)
    }

    fn delete(config: &str, identity: &Identity) -> Result<Deletion, Error> {
        switch("delete", config, Some(identity));
        Machines::delete(config, identity)
    }

    fn list_instances(config: &str, installation: &str, page: Option<&str>) -> Result<Page, Error> {
        switch("list-instances", config, None);
        Machines::list_instances(config, installation, page)
    }

    fn check(config: &str) -> Result<Vec<Finding>, Error> {
        switch("check", config, None);
        Machines::check(config)
    }
}

export_provider!(Switched);
"#;

/// The source of the guest. `read` gives the files that it includes: their text goes into it, since what is built may be used
/// by a clone elsewhere.
pub fn derive(template: &str, read: impl Fn(&str) -> String) -> String {
    // Inner documentation cannot be included, and tests are not built.
    let code = template.split("#[cfg(test)]").next().unwrap_or_default();
    let mut code: String = code.lines().filter(|line| !line.starts_with("//!")).flat_map(|line| [line, "\n"]).collect();
    for (from, to) in PATCHES {
        assert!(
            code.contains(from),
            "plugins/template/src/lib.rs no longer holds {from:?}; adapt tests/guests/build/rules.rs"
        );
        code = code.replace(from, to);
    }
    for file in ["config.schema.json", "parameters.schema.json"] {
        let (from, to) = (format!("include_str!(\"{file}\")"), format!("r##\"{}\"##", read(file)));
        assert!(
            code.contains(&from),
            "plugins/template/src/lib.rs no longer holds {from}; adapt tests/guests/build/rules.rs"
        );
        code = code.replace(&from, &to);
    }
    code
}
