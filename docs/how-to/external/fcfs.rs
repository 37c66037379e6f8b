// First come, first served: a job starts once enough cores are free, and hetsim chooses which.
use std::collections::{HashMap, VecDeque};
use std::io::{stdin, stdout, BufRead, Write};

fn after<'a>(text: &'a str, key: &str) -> &'a str {
    text.split_once(key).map_or("", |parts| parts.1)
}

fn word<'a>(text: &'a str, key: &str) -> &'a str {
    after(text, key).split(|c| matches!(c, ',' | '"' | '}')).next().unwrap_or("")
}

fn main() {
    let (mut cores, mut queue, mut unused) = (HashMap::<String, i64>::new(), VecDeque::<String>::new(), 0);
    for line in stdin().lock().lines().map_while(Result::ok) {
        let now = word(&line, "\"now\":");
        for event in line.split("\"type\":\"").skip(1) {
            let id = word(event, "\"job_id\":\"").to_string();
            match event.split('"').next() {
                Some("SIMULATION_BEGINS") => unused = word(event, "\"nb_resources\":").parse().unwrap(),
                Some("JOB_SUBMITTED") => {
                    cores.insert(id.clone(), word(event, "\"res\":").parse().unwrap());
                    queue.push_back(id);
                }
                Some("JOB_COMPLETED") => unused += cores[&id],
                _ => {}
            }
        }
        let mut answers = Vec::new();
        while queue.front().is_some_and(|id| cores[id] <= unused) {
            let id = queue.pop_front().unwrap();
            unused -= cores[&id];
            let data = format!("{{\"job_id\":\"{id}\"}}");
            answers.push(format!("{{\"timestamp\":{now},\"type\":\"EXECUTE_JOB\",\"data\":{data}}}"));
        }
        println!("{{\"now\":{now},\"events\":[{}]}}", answers.join(","));
        stdout().flush().unwrap();
    }
}
