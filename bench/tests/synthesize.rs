//! Synthesis against scripted models: protocols and what is tried again, the loop and its folder, and runs that are
//! killed and go on.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use dkb_bench::synthesize::{
    Config, End, Exec, Http, HttpOptions, Judge, Mailbox, Prices, Prompts, Protocol, Provider, Replay, Reply,
    Request, Trajectory, synthesize,
};
use dkb_bench::verdict::{Environment, Outcome, Run, Timing, Verdict};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const KEY: &str = "sk-secret";

// --- The judge and the prompts

/// Takes a plan's first word for the outcome, and its second for the speed-up.
struct FakeJudge;

impl Judge for FakeJudge {
    fn judge(&mut self, query: &str, plan: &str) -> Result<Verdict> {
        let mut words = plan.split_whitespace();
        let outcome: Outcome = serde_json::from_value(json!(words.next()))?;
        let timing = words.next().map(|speedup| speedup.parse().unwrap()).map(|speedup| Timing {
            base_ms: speedup,
            candidate_ms: 1.0,
            speedup,
            interval: (speedup, speedup),
            pairs: vec![(speedup, 1.0)],
        });
        Ok(Verdict {
            outcome,
            reason: format!("{outcome:?}"),
            feedback: format!("The feedback on {query}'s {outcome:?}."),
            timing,
            paper: None,
            plan_sha256: "0".repeat(64),
            checks: BTreeMap::from([("compile".to_owned(), "passed".to_owned())]),
        })
    }
}

struct FakePrompts;

impl Prompts for FakePrompts {
    fn first(&self, query: &str) -> Result<String> {
        Ok(format!("Make {query} faster.\n"))
    }
}

fn config(queries: &[&str]) -> Config {
    Config {
        run: Run {
            model: "fake".to_owned(),
            provider: "exec:fake".to_owned(),
            framework: "cuda".to_owned(),
            level: "full".to_owned(),
            without: Vec::new(),
            baseline: "dkb".to_owned(),
            environment: Environment::default(),
        },
        queries: queries.iter().map(|&query| query.to_owned()).collect(),
        jobs: 1,
        wall: Duration::from_secs(900),
        prices: Some(Prices { in_usd: 2.0, out_usd: 10.0 }),
    }
}

fn run(config: &Config, provider: &dyn Provider, out: &Path) -> Result<Vec<Trajectory>> {
    synthesize(config, &FakePrompts, &mut FakeJudge, provider, out)
}

fn block(plan: &str) -> String {
    format!("Here it is.\n\n```cuda\n{plan}\n```\n")
}

// --- Providers

/// The replies of each round, the same for all queries.
struct Scripted(Vec<String>);

impl Provider for Scripted {
    fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
        let text = self.0[request.round as usize - 1].clone();
        let plain = Reply::plain(request.prompt, text, Instant::now());
        Ok(Some(Reply { tokens_in: 100, tokens_out: 10, estimated: false, seconds: 0.5, ..plain }))
    }
}

fn ask(provider: &dyn Provider, prompt: &str) -> Result<Reply> {
    let stop = AtomicBool::new(false);
    Ok(provider.ask(&Request { query: "q06", round: 1, prompt, stop: &stop })?.unwrap())
}

// --- A server

/// What a server does with one request.
enum Step {
    /// Status, further headers, body.
    Answer(u16, &'static str, String),
    /// Closes the connection.
    Drop,
    /// Keeps silent.
    Hang,
}

/// A request as it came.
struct Seen {
    first_line: String,
    headers: String,
    body: Value,
}

struct Server {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    fn start(steps: Vec<Step>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            let mut silent = Vec::new();
            for step in steps {
                let (stream, _) = listener.accept().unwrap();
                log.lock().unwrap().push(Seen::read(&stream));
                match step {
                    Step::Answer(status, headers, body) => respond(stream, status, headers, &body),
                    Step::Drop => {}
                    Step::Hang => silent.push(stream),
                }
            }
        });
        Server { url, seen }
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn model(&self, protocol: Protocol, path: &str) -> Http {
        Http::new(HttpOptions {
            protocol,
            base_url: Some(format!("{}{path}", self.url)),
            key: Some(KEY.to_owned()),
            model: "m-1".to_owned(),
            max_tokens: None,
            timeout: Duration::from_millis(500),
            first_wait: Duration::from_millis(2),
        })
        .unwrap()
    }
}

impl Seen {
    fn read(stream: &TcpStream) -> Seen {
        let mut reader = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_ascii_lowercase()
        };
        let first_line = line();
        let headers: Vec<String> =
            std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty())).collect();
        let length = headers.iter().find_map(|header| header.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        Seen { first_line, headers: headers.join("\n"), body: serde_json::from_slice(&body).unwrap() }
    }
}

fn respond(mut stream: TcpStream, status: u16, headers: &str, body: &str) {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
}

fn openai(text: &str) -> Step {
    let answer = json!({
        "id": "x",
        "choices": [{ "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 12, "completion_tokens": 7 },
    });
    Step::Answer(200, "", answer.to_string())
}

fn busy(status: u16) -> Step {
    Step::Answer(status, "", json!({ "error": { "message": "overloaded" } }).to_string())
}

#[test]
fn openai_is_asked_until_it_answers() {
    let server = Server::start(vec![
        Step::Answer(429, "retry-after: 1\r\n", "slow down".to_owned()),
        busy(500),
        Step::Drop,
        Step::Answer(200, "", "{\"choices\": [".to_owned()),
        Step::Hang,
        openai("a reply"),
    ]);
    let begun = Instant::now();
    let reply = ask(&server.model(Protocol::OpenAi, "/v1/"), "a prompt").unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(1500), "a wait of 1 s and a time-out of 0.5 s");
    assert!(reply.seconds >= 1.5);
    assert_eq!((reply.text.as_str(), reply.tokens_in, reply.tokens_out), ("a reply", 12, 7));
    assert!(!reply.estimated && !reply.cut_off && reply.raw["id"] == "x");
    let seen = server.seen.lock().unwrap();
    assert_eq!(seen.len(), 6);
    for request in seen.iter() {
        assert_eq!(request.first_line, "post /v1/chat/completions http/1.1");
        assert!(request.headers.contains("authorization: bearer sk-secret"), "{}", request.headers);
        assert!(request.headers.contains("content-type: application/json"), "{}", request.headers);
        let body = json!({ "model": "m-1", "messages": [{ "role": "user", "content": "a prompt" }] });
        assert_eq!(request.body, body);
    }
}

#[test]
fn anthropic_speaks_its_own_protocol() {
    let answer = json!({
        "content": [
            { "type": "thinking", "thinking": "hm" },
            { "type": "text", "text": "a " },
            { "type": "text", "text": "reply" },
        ],
        "stop_reason": "max_tokens",
        "usage": { "input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 9 },
    });
    let server = Server::start(vec![busy(529), Step::Answer(200, "", answer.to_string())]);
    let reply = ask(&server.model(Protocol::Anthropic, ""), "a prompt").unwrap();
    assert_eq!((reply.text.as_str(), reply.tokens_in, reply.tokens_out), ("a reply", 25, 9));
    assert!(reply.cut_off && !reply.estimated);
    assert_eq!(reply.raw, answer);
    let seen = server.seen.lock().unwrap();
    assert_eq!((seen.len(), seen[1].first_line.as_str()), (2, "post /v1/messages http/1.1"));
    assert!(seen[1].headers.contains("x-api-key: sk-secret"), "{}", seen[1].headers);
    assert!(seen[1].headers.contains("anthropic-version: 2023-06-01"), "{}", seen[1].headers);
    assert!(!seen[1].headers.contains("authorization"));
    assert_eq!(seen[1].body["max_tokens"], 32_000);
    assert_eq!(seen[1].body["messages"], json!([{ "role": "user", "content": "a prompt" }]));
}

#[test]
fn a_local_server_needs_no_key_and_counts_no_tokens() {
    let answer = json!({ "choices": [{ "message": { "content": "12345" } }], "usage": null });
    let server = Server::start(vec![Step::Answer(200, "", answer.to_string())]);
    let model = Http::new(HttpOptions {
        protocol: Protocol::OpenAi,
        base_url: Some(server.url.clone()),
        key: None,
        model: "m-1".to_owned(),
        max_tokens: Some(1000),
        timeout: Duration::from_secs(5),
        first_wait: Duration::ZERO,
    });
    let reply = ask(&model.unwrap(), "a prompt").unwrap();
    assert_eq!((reply.tokens_in, reply.tokens_out, reply.estimated), (2, 2, true));
    let seen = server.seen.lock().unwrap();
    assert!(!seen[0].headers.contains("authorization"));
    assert_eq!(seen[0].body["max_completion_tokens"], 1000);
}

#[test]
fn other_errors_fail_at_once_without_the_key() {
    for status in [400, 401, 403, 404, 302] {
        let body = json!({ "error": { "message": format!("bad key {KEY}") } }).to_string();
        let server = Server::start(vec![Step::Answer(status, "location: http://127.0.0.1:1/\r\n", body)]);
        let error = ask(&server.model(Protocol::OpenAi, ""), "p").unwrap_err().to_string();
        assert!(error.contains(&status.to_string()) && error.contains("bad key ***"), "{error}");
        assert_eq!(server.requests(), 1);
    }
    let long = Server::start(vec![Step::Answer(429, "retry-after: 86400\r\n", String::new())]);
    let error = ask(&long.model(Protocol::OpenAi, ""), "p").unwrap_err().to_string();
    assert!(error.contains("wait 86400 s"), "{error}");
}

#[test]
fn a_run_goes_on_after_the_server_gave_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut steps = vec![openai(&block("wrong"))];
    steps.extend((0..6).map(|_| busy(503)));
    steps.push(openai(&block("accepted 1.5")));
    let server = Server::start(steps);
    let model = server.model(Protocol::OpenAi, "");
    let error = format!("{:#}", run(&config(&["q06"]), &model, folder.path()).unwrap_err());
    assert!(
        error.contains("q06, round 2") && error.contains("503") && error.contains("overloaded"),
        "{error}"
    );
    assert!(error.contains("tried 6 times") && !error.contains(KEY), "{error}");
    let done = run(&config(&["q06"]), &model, folder.path()).unwrap();
    assert_eq!((done[0].end, done[0].rounds.len(), server.requests()), (End::Accepted, 2, 8));
}

// --- The loop

#[test]
fn rounds_go_on_until_a_plan_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let plans = ["compile", "wrong", "fault", "accepted 1.5"];
    let model = Scripted(plans.iter().map(|plan| block(plan)).collect());
    let done = run(&config(&["q06"]), &model, folder.path()).unwrap();

    let outcomes: Vec<Outcome> = done[0].rounds.iter().map(|round| round.verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Compile, Outcome::Wrong, Outcome::Fault, Outcome::Accepted]);
    assert_eq!((done[0].query.as_str(), done[0].end), ("q06", End::Accepted));
    assert_eq!(done[0].rounds.iter().map(|round| round.tokens_in).sum::<u64>(), 400);
    assert_eq!(done[0].rounds.iter().map(|round| round.tokens_out).sum::<u64>(), 40);
    let cost: f64 = done[0].rounds.iter().filter_map(|round| round.cost_usd).sum();
    assert!((cost - 0.0012).abs() < 1e-12, "{cost}");

    let mut expected = vec!["run.json".to_owned()];
    for round in 1..=4 {
        for name in ["candidate.plan", "prompt.md", "reply.json", "verdict.json"] {
            expected.push(format!("q06/{round:02}/{name}"));
        }
    }
    expected.sort();
    let files = files(folder.path());
    assert_eq!(files.keys().cloned().collect::<Vec<_>>(), expected);

    let text = |name: &str| String::from_utf8(files[name].clone()).unwrap();
    assert_eq!(text("q06/01/prompt.md"), "Make q06 faster.\n");
    let third = text("q06/03/prompt.md");
    assert!(third.starts_with("Make q06 faster.\n"), "{third}");
    assert!(third.contains("of round 2\n\n```\nwrong\n```\n"), "{third}");
    assert!(third.contains("The feedback on q06's Wrong.") && !third.contains("Compile"), "{third}");
    assert!(!third.contains("best"), "no right one yet: {third}");
    assert_eq!(text("q06/04/candidate.plan"), "accepted 1.5\n");
    let verdict: dkb_bench::verdict::Round = serde_json::from_str(&text("q06/04/verdict.json")).unwrap();
    assert_eq!(verdict, done[0].rounds[3]);
    let reply: Reply = serde_json::from_str(&text("q06/04/reply.json")).unwrap();
    assert_eq!((reply.text, reply.tokens_in, reply.seconds), (block("accepted 1.5"), 100, 0.5));
}

#[test]
fn prompts_hold_the_best_plan_and_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut replies = vec![block("not_faster 1.02"), block("not_faster 1.01"), "I give up".to_owned()];
    replies.extend((0..7).map(|_| block("compile") + &block("wrong")));
    let done = run(&config(&["q06"]), &Scripted(replies), folder.path()).unwrap();
    assert_eq!((done[0].end, done[0].rounds.len()), (End::Rounds, 10));
    assert_eq!(done[0].rounds[2].verdict.outcome, Outcome::Refused);
    assert!(done[0].rounds[2].verdict.reason.contains("no fenced code block"));
    assert!(done[0].rounds[9].verdict.reason.contains("2 fenced code blocks"));
    let prompt = |round| fs::read_to_string(folder.path().join(format!("q06/{round:02}/prompt.md"))).unwrap();
    assert!(prompt(2).contains("It is the last one (1.020 times as fast"), "{}", prompt(2));
    assert!(
        prompt(3).contains("of round 1 (1.020 times as fast as the baseline).\n\n```\nnot_faster 1.02\n```")
    );
    assert!(prompt(3).contains("of round 2\n\n```\nnot_faster 1.01\n```"), "{}", prompt(3));
    assert!(prompt(4).contains("of round 2\n\n```\nnot_faster 1.01\n```"), "{}", prompt(4));
    assert!(prompt(4).contains("no fenced code block"), "{}", prompt(4));
    assert!(!folder.path().join("q06/03/candidate.plan").exists());
    assert!(!folder.path().join("q06/11").exists());
}

#[test]
fn a_query_ends_with_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let short = Config { wall: Duration::from_millis(1200), prices: None, ..config(&["q06", "q14"]) };
    let model = Scripted(vec![block("wrong"); 10]);
    for done in run(&short, &model, folder.path()).unwrap() {
        assert_eq!((done.end, done.rounds.len()), (End::Wall, 3), "replies take 0.5 s each");
        assert_eq!(done.rounds[0].cost_usd, None);
    }
    let longer = Config { wall: Duration::from_millis(1700), ..short };
    let done = run(&longer, &model, folder.path()).unwrap();
    assert_eq!(done[0].rounds.len(), 4, "time is counted over both runs");
}

#[test]
fn a_folder_belongs_to_one_run_and_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let model = Scripted(vec![block("accepted 1.5")]);
    let mut config = config(&["q06"]);
    run(&config, &model, folder.path()).unwrap();
    config.run.environment.gpu = "another".to_owned();
    run(&config, &model, folder.path()).unwrap();

    let lock = fs::File::open(folder.path()).unwrap();
    lock.lock().unwrap();
    let error = run(&config, &model, folder.path()).unwrap_err().to_string();
    assert!(error.contains("in use by another process"), "{error}");
    drop(lock);

    config.run.model = "another".to_owned();
    let error = run(&config, &model, folder.path()).unwrap_err().to_string();
    assert!(error.contains("run.json describes another run"), "{error}");
    config.run.model = "fake".to_owned();
    config.queries = vec!["../q06".to_owned()];
    assert!(run(&config, &model, folder.path()).is_err());
}

#[test]
fn several_queries_are_asked_at_once() {
    /// Answers once all queries have asked.
    struct Together(AtomicUsize);

    impl Provider for Together {
        fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            let begun = Instant::now();
            while self.0.load(Ordering::SeqCst) < 3 {
                ensure!(begun.elapsed() < Duration::from_secs(20), "asked alone");
                thread::sleep(Duration::from_millis(1));
            }
            Ok(Some(Reply::plain(request.prompt, block("accepted 1.5"), begun)))
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let config = Config { jobs: 3, ..config(&["q01", "q02", "q03"]) };
    let done = run(&config, &Together(AtomicUsize::new(0)), folder.path()).unwrap();
    let ended: Vec<_> = done.iter().map(|done| (done.query.as_str(), done.end)).collect();
    assert_eq!(ended, [("q01", End::Accepted), ("q02", End::Accepted), ("q03", End::Accepted)]);
}

// --- Commands, mailboxes, old runs

fn exec(command: &str) -> Exec {
    Exec { command: command.to_owned(), timeout: Duration::from_secs(20) }
}

#[test]
fn a_command_gets_the_prompt_and_prints_the_reply() {
    let reply = ask(&exec("cat; echo noise >&2"), "a prompt").unwrap();
    assert_eq!((reply.text.as_str(), reply.tokens_in, reply.estimated), ("a prompt", 2, true));
    // Neither a prompt that is not read nor a process that is left behind holds it up.
    let begun = Instant::now();
    let reply = ask(&exec("sleep 12 & echo ok"), &"x".repeat(1 << 20)).unwrap();
    assert_eq!(reply.text, "ok\n");
    assert!(begun.elapsed() < Duration::from_secs(10));

    let error = ask(&exec("echo out of credit >&2; exit 3"), "p").unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.ends_with("out of credit"), "{error}");
    let slow = Exec { timeout: Duration::from_millis(50), ..exec("sleep 20 | cat") };
    let begun = Instant::now();
    let error = ask(&slow, "p").unwrap_err().to_string();
    assert!(error.contains("--timeout") && begun.elapsed() < Duration::from_secs(10), "{error}");
}

#[test]
fn a_mailbox_is_answered_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let (mail, out) = (folder.path().join("mail"), folder.path().join("out"));
    let person = {
        let mail = mail.clone();
        thread::spawn(move || {
            let path = |name: &str| mail.join(format!("{name}.md"));
            let await_all = |names: &[&str]| {
                while !names.iter().all(|name| path(name).exists()) {
                    thread::sleep(Duration::from_millis(5));
                }
            };
            await_all(&["q06-01.prompt", "q14-01.prompt"]);
            // One that is not whole yet.
            let mut slow = fs::File::create(path("q14-01.reply")).unwrap();
            for part in [block("wrong").as_str(), "It is ", "better."] {
                slow.write_all(part.as_bytes()).unwrap();
                thread::sleep(Duration::from_millis(60));
            }
            await_all(&["q14-02.prompt"]);
            assert!(
                fs::read_to_string(path("q14-02.prompt")).unwrap().contains("The feedback on q14's Wrong.")
            );
            fs::write(path("q14-02.reply"), block("accepted 2")).unwrap();
            fs::write(path("q06-01.reply"), block("accepted 3")).unwrap();
        })
    };
    let config = Config { jobs: 2, ..config(&["q06", "q14"]) };
    let done = run(&config, &Mailbox { folder: mail.clone() }, &out).unwrap();
    person.join().unwrap();
    assert_eq!((done[0].rounds.len(), done[1].rounds.len()), (1, 2));
    let reply = fs::read_to_string(out.join("q14/01/reply.json")).unwrap();
    assert!(reply.contains("It is better."), "{reply}");

    let error = ask(&Mailbox { folder: mail }, "another prompt").unwrap_err().to_string();
    assert!(error.contains("answers another prompt"), "{error}");
}

#[test]
fn a_failed_run_waits_for_no_mail() {
    /// Fails for one query and waits for the other.
    struct Half(Mailbox);

    impl Provider for Half {
        fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
            if request.query == "q06" { bail!("no credit") } else { self.0.ask(request) }
        }
    }

    let folder = tempfile::tempdir().unwrap();
    let config = Config { jobs: 2, ..config(&["q06", "q14"]) };
    let provider = Half(Mailbox { folder: folder.path().join("mail") });
    let error = run(&config, &provider, &folder.path().join("out")).unwrap_err();
    assert_eq!(format!("{error:#}"), "q06, round 1: no credit");
}

#[test]
fn a_replay_gives_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let model = Scripted(vec![
        block("wrong"),
        "no block".to_owned(),
        block("not_faster 1.01"),
        block("accepted 1.5"),
    ]);
    let config = config(&["q06", "q14"]);
    let first = run(&config, &model, &old).unwrap();
    let again = run(&config, &Replay { folder: old.clone() }, &new).unwrap();
    assert_eq!(first, again);
    let untimed = |folder: &Path| {
        let mut files = files(folder);
        for (_, content) in files.iter_mut().filter(|(name, _)| name.ends_with("verdict.json")) {
            let mut verdict: Value = serde_json::from_slice(content).unwrap();
            verdict["seconds"] = json!(0);
            *content = verdict.to_string().into_bytes();
        }
        files
    };
    assert_eq!(untimed(&old), untimed(&new));

    // The old run ends where this judge goes on.
    fs::remove_dir_all(old.join("q14/04")).unwrap();
    let cut = run(&config, &Replay { folder: old }, &folder.path().join("cut")).unwrap();
    assert_eq!((cut[0].end, cut[1].end, cut[1].rounds.len()), (End::Accepted, End::Replies, 3));
    let error = run(&config, &Replay { folder: folder.path().join("none") }, &folder.path().join("error"));
    assert!(format!("{:#}", error.unwrap_err()).contains("holds no run"));
}

// --- Killed runs

/// All files of a folder but those that are being written, by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !name.ends_with(".partial") {
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// Set in a child process: the folder of its run.
const CHILD: &str = "DKB_TEST_SYNTHESIZE";

/// The queries of runs that are killed, and the rounds in which their plans are accepted.
const KILLED: [(&str, u32); 3] = [("q01", 5), ("q02", 10), ("q03", 3)];

/// Gives each reply another text, and refuses to give one that is there.
struct Once(PathBuf);

impl Provider for Once {
    fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
        let path = self.0.join(request.query).join(format!("{:02}/reply.json", request.round));
        ensure!(!path.exists(), "{} is asked for again", path.display());
        thread::sleep(Duration::from_millis(SmallRng::seed_from_u64(nanos()).random_range(0..4)));
        let accepted = KILLED.contains(&(request.query, request.round));
        let plan = if accepted { "accepted 1.5" } else { "wrong" };
        let text = format!("{}\n{}", nanos(), block(plan));
        Ok(Some(Reply::plain(request.prompt, text, Instant::now())))
    }
}

fn nanos() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Refuses to judge what is judged.
struct JudgeOnce(PathBuf);

impl Judge for JudgeOnce {
    fn judge(&mut self, query: &str, plan: &str) -> Result<Verdict> {
        let open = (1..=10).map(|round| self.0.join(query).join(format!("{round:02}")));
        let open =
            open.filter(|folder| folder.join("reply.json").exists() && !folder.join("verdict.json").exists());
        ensure!(open.count() == 1, "{query} is judged again");
        thread::sleep(Duration::from_millis(1));
        FakeJudge.judge(query, plan)
    }
}

fn killed_config() -> Config {
    Config { jobs: 2, ..config(&KILLED.map(|(query, _)| query)) }
}

/// Not a test of its own: the run that the next one kills.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let (provider, mut judge) = (Once(folder.clone()), JudgeOnce(folder.clone()));
    synthesize(&killed_config(), &FakePrompts, &mut judge, &provider, &folder).unwrap();
}

#[test]
fn killed_runs_go_on() {
    let mut random = SmallRng::seed_from_u64(6);
    let mut kills = 0;
    let mut states = HashSet::new();
    while kills < 20 {
        let folder = tempfile::tempdir().unwrap();
        let mut before = BTreeMap::new();
        loop {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["child", "--exact"])
                .env(CHILD, folder.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            thread::sleep(Duration::from_millis(random.random_range(2..40)));
            let ended = if kills < 20 { child.try_wait().unwrap() } else { Some(child.wait().unwrap()) };
            if ended.is_none() {
                child.kill().unwrap();
                child.wait().unwrap();
                kills += 1;
            }
            let after = files(folder.path());
            for (name, content) in &before {
                assert_eq!(after.get(name), Some(content), "{name} has changed");
            }
            states.insert(after.len());
            before = after;
            if let Some(status) = ended {
                assert!(status.success());
                break;
            }
        }
        // What the last kill left half written goes with the next start.
        synthesize(
            &killed_config(),
            &FakePrompts,
            &mut FakeJudge,
            &Once(folder.path().to_owned()),
            folder.path(),
        )
        .map(|done| {
            for (done, (query, rounds)) in done.iter().zip(KILLED) {
                assert_eq!((done.query.as_str(), done.rounds.len() as u32), (query, rounds));
                assert_eq!(done.end, End::Accepted);
            }
        })
        .unwrap();
        let rounds: u32 = KILLED.iter().map(|(_, rounds)| rounds).sum();
        assert_eq!(files(folder.path()).len() as u32, 1 + 4 * rounds);
        let listed = Command::new("find").arg(folder.path()).args(["-name", "*.partial"]).output().unwrap();
        assert!(listed.stdout.is_empty());
    }
    assert!(states.len() > 3, "killed at too few points: {states:?}");
}
