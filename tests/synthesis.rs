//! The whole loop: a scripted model behind each protocol, real compilers, workers and times, and the leaderboard
//! recomputed by hand.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use dkb_tests::{cache_dir, dkb_run, program, run, tpch_data};
use serde_json::{Value, json};

/// Speaks a protocol on a port of its own; the k-th request gets the k-th text.
struct Model {
    url: String,
    prompts: Arc<Mutex<Vec<String>>>,
}

impl Model {
    fn start(anthropic: bool, texts: Vec<String>) -> Model {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let prompts = Arc::new(Mutex::new(Vec::new()));
        let seen = prompts.clone();
        std::thread::spawn(move || {
            // On a busy machine the last plan may need another round: it is sent again.
            let last = texts.last().cloned();
            for (stream, text) in listener.incoming().zip(texts.into_iter().chain(last.into_iter().cycle())) {
                let mut stream = stream.expect("a connection");
                let body = request(&mut BufReader::new(&stream));
                let sent = &body["messages"][0]["content"];
                let sent = sent.as_str().map_or_else(|| sent[0]["text"].to_string(), str::to_owned);
                seen.lock().expect("no panic").push(sent);
                let reply = if anthropic {
                    json!({"content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
                           "usage": {"input_tokens": 1000, "output_tokens": 100}})
                } else {
                    json!({"choices": [{"message": {"content": text}, "finish_reason": "stop"}],
                           "usage": {"prompt_tokens": 1000, "completion_tokens": 100}})
                };
                let reply = reply.to_string();
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
                write!(stream, "{head}Content-Length: {}\r\n\r\n{reply}", reply.len()).expect("a reader");
            }
        });
        Model { url, prompts }
    }
}

/// Reads one request and returns its JSON body.
fn request(input: &mut impl BufRead) -> Value {
    let mut length = 0;
    loop {
        let mut line = String::new();
        input.read_line(&mut line).expect("a header");
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).expect("a body");
    serde_json::from_slice(&body).expect("JSON")
}

/// Plans for q01 as a model might write them: one that does not compile, a wrong one, one that never ends, and one that
/// is faster on the host, where an array in memory beats sums selected by comparison.
fn replies() -> Vec<String> {
    let mut command = dkb_run(["--query", "q01", "--explain", "kernels"]);
    let (code, plan, _) = run(command.arg("--data").arg(tpch_data()));
    assert_eq!(code, 0);
    let plan = plan.replacen("level = \"baseline\"", "level = \"full\"", 1);
    let change = |from: &str, to: &str| {
        assert!(plan.contains(from), "{from}");
        plan.replace(from, to)
    };
    let array = "#include \"dkb.cuh\"\nstruct Sums {\n  i64 sum[6] = {};\n  DKB_MEMBER void add(u64 g, i64 v) { \
                 sum[g] += v; }\n  DKB_MEMBER void flush(i64* cells) { for (int g = 0; g < 6; ++g) block_add(cells + g, \
                 sum[g]); }\n};\n";
    let plans = [
        change("a1_sum_0_here.flush(a1_sum_0);", "a1_sum_0_here.flush(a1_sum);"),
        change("a1_sum_1_here.add(a1_slot, ", "a1_sum_1_here.add(a1_slot, 1 + "),
        change("a1_sum_0_here.flush(a1_sum_0);", "for (;;) bit_set((u32*)a1_sum_0, 1, 0);"),
        change("#include \"dkb.cuh\"\n", array).replace("FewSums<6, i64> ", "Sums "),
    ];
    plans.into_iter().map(|plan| format!("Here it is.\n```\n{plan}```\n")).collect()
}

/// The name of the last round of q01.
fn last_round(out: &Path) -> String {
    let rounds = std::fs::read_dir(out.join("q01")).expect("rounds");
    let names = rounds.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
    names.max().expect("a round")
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn a_model_is_told_what_is_wrong_until_its_plan_is_accepted() {
    let runs = tempfile::tempdir().expect("a temporary folder");
    for (name, anthropic) in [("openai", false), ("anthropic", true)] {
        let model = Model::start(anthropic, replies());
        let out = runs.path().join(name);
        let mut command = Command::new(program("dkb-bench"));
        command.args([
            "synthesize",
            "--provider",
            name,
            "--model",
            name,
            "--query",
            "q01",
            "--device",
            "host",
        ]);
        command.args(["--base-url", &model.url, "--time-limit", "3", "--price-in", "2", "--price-out", "10"]);
        command.arg("--data").arg(tpch_data()).arg("--output").arg(&out);
        command.env("DKB_CACHE_DIR", cache_dir()).env("ANTHROPIC_API_KEY", "k").env("OPENAI_API_KEY", "k");
        let (code, said, _) = run(&mut command);
        assert_eq!(code, 0, "{said}");
        let verdict = |round: &str| read(&out.join("q01").join(round).join("verdict.json"));
        let outcome = |round: &str| verdict(round)["verdict"]["outcome"].as_str().map(str::to_owned);
        let outcomes = ["01", "02", "03"].map(|round| outcome(round).expect("an outcome"));
        assert_eq!(outcomes, ["compile", "wrong", "time_out"], "{said}");
        let last = last_round(&out);
        assert_eq!(outcome(&last).as_deref(), Some("accepted"), "{said}");
        let prompts = model.prompts.lock().expect("no panic");
        assert!(prompts[0].contains("sum_charge") && prompts[0].contains("block_add"), "the first prompt");
        assert!(prompts[1].contains("a1_sum"), "the compiler's words");
        assert!(prompts[2].contains("sum_base_price: got "), "differing cells: {}", prompts[2]);
        assert!(prompts[3].contains("stopped after"), "the time that is over");

        let timing = &verdict(&last)["verdict"]["timing"];
        let ms = |name: &str| timing[name].as_f64().expect("a time");
        let overall = ms("base_ms") / ms("candidate_ms");
        assert!(overall >= 1.05, "{timing}");
    }
    let mut command = Command::new(program("dkb-bench"));
    let (code, table, _) = run(command.arg("leaderboard").arg(runs.path()).args(["--format", "json"]));
    assert_eq!(code, 0);
    assert!(table.contains("anthropic") && table.contains("openai"), "{table}");
    let mut command = Command::new(program("dkb-bench"));
    let (code, table, _) = run(command.arg("leaderboard").arg(runs.path()));
    assert_eq!(code, 0);
    for name in ["openai", "anthropic"] {
        let out = runs.path().join(name);
        let last = last_round(&out);
        let timing = read(&out.join("q01").join(&last).join("verdict.json"))["verdict"]["timing"].clone();
        let ms = |name: &str| timing[name].as_f64().expect("a time");
        let overall = format!("{:.2}", ms("base_ms") / ms("candidate_ms"));
        let row = table.lines().find(|line| line.contains(name)).expect("a row");
        assert!(row.contains(&overall), "{overall}: {row}");
        // Rounds of 1,000 tokens in and 100 out, at 2 and 10 dollars a million.
        let rounds: f64 = last.parse().expect("a number");
        assert!(row.contains(&format!("{rounds:.1}")), "{row}");
        assert!(row.contains(&format!("{:.2}", rounds * 0.003)), "{row}");
    }
}
