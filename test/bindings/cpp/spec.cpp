/* SPDX-License-Identifier: MIT
 *
 * spec.cpp - run the scripts of test/bindings/spec with holdfast.hpp.
 *
 *     spec URL FILE...
 *     spec --child PREFIX URL
 *
 * spec/README.md defines the language.  `start` is a request whose end is an event,
 * `startall` a thread that waits with a stop token.  A verb returns its result, and
 * throws what the library says.
 */
#include <holdfast.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <map>
#include <poll.h>
#include <set>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace std::chrono_literals;
using words = std::vector<std::string>;
using holdfast::milliseconds;

constexpr auto patience = 30s;

static std::string program, url, prefix;

/* ---- what has a name ---------------------------------------------------- */

/* A lock and what stays known of it. */
struct named_lock {
    holdfast::lock lock;
    std::string key;
    std::uint64_t fence = 0;
    std::int32_t slot = -1;
};

/* One key is a request behind the events, several are a thread that waits. */
using outcome = holdfast::result<std::vector<holdfast::lock>>;
struct request {
    words names;
    std::string client;
    hf_request *name = nullptr;
    std::optional<outcome> end;
    std::future<outcome> later;
    std::jthread thread;
};

struct process {
    pid_t pid = 0;
    FILE *to = nullptr, *from = nullptr;
};

static std::map<std::string, holdfast::client> clients;
static std::map<std::string, named_lock> locks;
static std::map<std::string, request> requests;
static std::map<std::string, holdfast::handle> handles;
static std::map<std::string, holdfast::observer> observers;
static std::map<std::string, process> processes;
static std::set<hf_lock *> at_risk;

static words split(const std::string &text, char mark)
{
    std::istringstream in(text);
    words ret;

    for (std::string word; std::getline(in, word, mark);)
        if (!word.empty())
            ret.push_back(word);
    return ret;
}

static const char *yes(bool value)
{
    return value ? "yes" : "no";
}

static std::string full_key(const std::string &key)
{
    return prefix + (key == "*" ? "" : key);
}

static void on_event(const hf_event &event)
{
    if (event.type == HF_AT_RISK)
        at_risk.insert(event.lock);
    for (auto &[name, request] : requests) {
        if (!request.name || request.name != event.request)
            continue;
        request.name = nullptr;
        if (event.type == HF_FAILED) {
            request.end.emplace(event.error);
            continue;
        }
        std::vector<holdfast::lock> one;
        one.emplace_back(event.lock);
        request.end.emplace(std::move(one));
    }
}

static void dispatch(milliseconds wait)
{
    std::vector<pollfd> fds;

    for (auto &[name, client] : clients)
        fds.push_back({client.events_fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
    for (auto &[name, client] : clients)
        while (auto event = client.next_event())
            on_event(*event);
    for (auto &[name, request] : requests)
        if (request.later.valid() &&
            request.later.wait_for(0s) == std::future_status::ready)
            request.end.emplace(request.later.get());
}

template <class Ready> static std::string until(Ready ready)
{
    const auto end = std::chrono::steady_clock::now() + patience;

    while (!ready()) {
        if (std::chrono::steady_clock::now() > end)
            return "silence";
        dispatch(10ms);
    }
    return "ok";
}

/* ---- acquiring ----------------------------------------------------------- */

static holdfast::options options(const words &w, std::size_t at,
                                 milliseconds &wait)
{
    holdfast::options o;

    wait = 0ms;
    for (; at < w.size(); at++) {
        const auto equal = w[at].find('=');
        const auto name = w[at].substr(0, equal);
        const auto text =
            equal == std::string::npos ? "" : w[at].substr(equal + 1);
        const auto number = std::atoll(text.c_str());
        const milliseconds ms(number);

        o.shared |= name == "shared";
        o.manual |= name == "manual";
        o.fair |= name == "fair";
        o.poll |= name == "poll";
        if (name == "wait")
            wait = ms;
        else if (name == "ttl")
            o.ttl = ms;
        else if (name == "retry")
            o.retry = ms;
        else if (name == "linger")
            o.linger = ms;
        else if (name == "max_hold")
            o.max_hold = ms;
        else if (name == "min_hold")
            o.min_hold = ms;
        else if (name == "permits")
            o.permits = static_cast<std::int32_t>(number);
        else if (name == "tries")
            o.max_tries = static_cast<std::int32_t>(number);
        else if (name == "owner")
            o.owner = text;
        else if (name == "note")
            o.note = text;
    }
    return o;
}

static void keep(const std::string &name, holdfast::lock lock)
{
    auto &at = locks[name];

    at.key = lock.key();
    at.fence = lock.fence();
    at.slot = lock.slot().value_or(-1);
    at.lock = std::move(lock);
}

static words full_keys(const std::string &list)
{
    words ret;

    for (const auto &key : split(list, ','))
        ret.push_back(full_key(key));
    return ret;
}

static std::string do_lock(const words &w)
{
    milliseconds wait;
    const auto o = options(w, 4, wait);

    keep(w[2], clients.at(w[1]).acquire(full_key(w[3]), wait, o).value());
    return "ok";
}

static std::string do_all(const words &w)
{
    milliseconds wait;
    const auto o = options(w, 4, wait);
    auto got = clients.at(w[1]).acquire_all(full_keys(w[3]), wait, o).value();
    const auto names = split(w[2], ',');

    for (std::size_t i = 0; i < got.size(); i++)
        keep(names[i], std::move(got[i]));
    return "ok";
}

static std::string do_start(const words &w)
{
    milliseconds wait;
    const auto o = options(w, 4, wait);
    auto started = clients.at(w[1]).start(full_key(w[3]), wait, o).value();
    request now;

    now.names = {w[2]};
    now.client = w[1];
    now.name = started.get();
    requests[w[2]] = std::move(now);
    return "ok";
}

static std::string do_startall(const words &w)
{
    std::promise<outcome> end;
    auto &client = clients.at(w[1]);
    milliseconds wait;
    const auto o = options(w, 4, wait);
    request now;

    now.names = split(w[2], ',');
    now.client = w[1];
    now.later = end.get_future();
    now.thread = std::jthread(
        [&client, keys = full_keys(w[3]), wait, o,
         end = std::move(end)](const std::stop_token &stop) mutable {
            end.set_value(client.acquire_all(keys, stop, wait, o));
        });
    requests[now.names[0]] = std::move(now);
    return "ok";
}

static std::string do_cancel(const words &w)
{
    auto &request = requests.at(w[1]);

    request.thread.request_stop();
    if (request.name)
        holdfast::request(request.name).cancel();
    return "ok";
}

static bool pending(const std::string &name)
{
    dispatch(0ms);
    return !requests.at(name).end;
}

static std::string do_pending(const words &w)
{
    return yes(pending(w[1]));
}

static std::string do_wait(const words &w)
{
    if (until([&] { return !pending(w[1]); }) != "ok")
        return "pending";
    auto ended = std::move(requests.at(w[1]));
    requests.erase(w[1]);
    auto got = std::move(*ended.end).value();
    for (std::size_t i = 0; i < got.size(); i++)
        keep(ended.names[i], std::move(got[i]));
    return "ok";
}

/* ---- locks ---------------------------------------------------------------- */

static std::string do_open(const words &w)
{
    const bool other = w.size() > 2 && w[2].rfind("url=", 0) == 0;

    clients.insert_or_assign(w[1],
                             holdfast::client(other ? w[2].substr(4) : url));
    return "ok";
}

/* The requests of a client that is closed end with HF_CANCELED, and without an
 * event. */
static std::string do_close(const words &w)
{
    for (auto &[name, request] : requests)
        if (request.client == w[1] && request.name) {
            request.name = nullptr;
            request.end.emplace(
                hf_error{HF_CANCELED, 0, "the client was closed"});
        }
    clients.erase(w[1]);
    return "ok";
}

static std::string do_release(const words &w)
{
    locks.at(w[1]).lock.release();
    return "ok";
}

static std::string do_extend(const words &w)
{
    const auto ttl = w.size() > 2 ? std::atoll(w[2].c_str() + 4) : 0;

    locks.at(w[1]).lock.extend(milliseconds(ttl));
    return "ok";
}

static std::string do_downgrade(const words &w)
{
    locks.at(w[1]).lock.downgrade();
    return "ok";
}

static std::string do_held(const words &w)
{
    return yes(locks.at(w[1]).lock.held());
}

static std::string do_lost(const words &w)
{
    const auto &lock = locks.at(w[1]).lock;
    pollfd lost = {lock.lost_fd(), POLLIN, 0};

    if (poll(&lost, 1, 30000) != 1)
        return "silence";
    return lock.held() ? "held" : hf_loss_name(lock.loss());
}

static std::string do_risk(const words &w)
{
    return until([&] { return at_risk.count(locks.at(w[1]).lock.get()) > 0; });
}

static std::string do_fences(const words &w)
{
    const auto names = split(w[1], ',');
    bool rise = true, same = true;

    for (std::size_t i = 1; i < names.size(); i++) {
        const auto last = locks.at(names[i - 1]).fence;

        rise = rise && locks.at(names[i]).fence > last;
        same = same && locks.at(names[i]).fence == last;
    }
    return !locks.at(names[0]).fence ? "unfenced"
           : rise                    ? "rise"
           : same                    ? "same"
                                     : "no";
}

static std::string do_slots(const words &w)
{
    const auto names = split(w[1], ',');
    std::set<std::int32_t> seen;

    for (const auto &name : names)
        seen.insert(locks.at(name).slot);
    return yes(seen.size() == names.size() && *seen.begin() == 0 &&
               *seen.rbegin() == static_cast<std::int32_t>(names.size()) - 1);
}

/* ---- looking ---------------------------------------------------------------- */

static std::string told(const holdfast::info &info, const words &w,
                        std::size_t at)
{
    std::string ret;

    for (; at < w.size(); at++) {
        ret += ret.empty() ? "" : " ";
        if (w[at] == "held")
            ret += info.held ? "held" : "free";
        else if (w[at] == "mode")
            ret += info.shared ? "shared" : "exclusive";
        else if (w[at] == "note")
            ret += info.note;
        else if (w[at] == "kept" || w[at] == "broken")
            ret += yes(w[at] == "kept" ? info.kept : info.broken);
        else
            ret += std::to_string(w[at] == "holders"   ? info.holders
                                  : w[at] == "permits" ? info.permits
                                                       : info.waiters);
    }
    return ret;
}

static std::string do_inspect(const words &w)
{
    return told(clients.at(w[1]).inspect(full_key(w[2])), w, 3);
}

static std::string do_holders(const words &w)
{
    return std::to_string(clients.at(w[1]).holders(full_key(w[2])).size());
}

static std::string do_list(const words &w)
{
    std::set<std::string> keys;
    std::string ret;

    for (const auto &found : clients.at(w[1]).list(full_key(w[2])))
        keys.insert(found.key.substr(prefix.size()));
    for (const auto &key : keys)
        ret += (ret.empty() ? "" : ",") + key;
    return ret.empty() ? "none" : ret;
}

static std::string do_waiters(const words &w)
{
    return until([&] {
        const auto seen = clients.at(w[1]).inspect(full_key(w[2])).waiters;

        return seen < 0 || seen == std::atoi(w[3].c_str());
    });
}

static std::string do_check(const words &w)
{
    const auto &lock = locks.at(w[2]);

    return clients.at(w[1]).check(lock.key, lock.fence) ? "ok" : "lost";
}

static std::string do_break(const words &w)
{
    const auto &lock = locks.at(w[2]);

    clients.at(w[1]).break_lock(lock.key, lock.fence, w.size() > 3);
    return "ok";
}

static std::string do_detach(const words &w)
{
    handles.insert_or_assign(w[2], locks.at(w[1]).lock.detach());
    return "ok";
}

static std::string do_attach(const words &w)
{
    milliseconds wait;
    const auto o = options(w, 5, wait);

    keep(w[2], clients.at(w[1]).attach(full_key(w[3]), handles.at(w[4]), o));
    return "ok";
}

static std::string do_extendhandle(const words &w)
{
    milliseconds wait;
    const auto o = options(w, 4, wait);

    clients.at(w[1]).extend(full_key(w[2]), handles.at(w[3]), o);
    return "ok";
}

static std::string do_releasehandle(const words &w)
{
    clients.at(w[1]).release(full_key(w[2]), handles.at(w[3]));
    return "ok";
}

static std::string do_collect(const words &w)
{
    const milliseconds older(std::atoll(w[2].c_str()));

    return clients.at(w[1]).collect(older, w.size() > 3).looked_at ? "some"
                                                                   : "none";
}

static std::string do_stats(const words &w)
{
    const auto s = clients.at(w[1]).stats();
    std::map<std::string, std::uint64_t> values = {
        {"granted", s.granted},  {"busy", s.busy},
        {"timeout", s.timeout},  {"canceled", s.canceled},
        {"held", s.held},        {"waiting", s.waiting},
        {"renewed", s.renewed},  {"waits", s.wait.count},
        {"holds", s.hold.count}, {"lost", 0},
    };
    std::string ret;

    for (const auto n : s.lost)
        values["lost"] += n;
    for (std::size_t i = 2; i < w.size(); i++)
        ret += (i > 2 ? " " : "") + std::to_string(values.at(w[i]));
    return ret;
}

static std::string do_metrics(const words &w)
{
    const auto text = clients.at(w[1]).stats_text();
    const auto sample = "result=\"granted\"} " +
                        std::to_string(clients.at(w[1]).stats().granted) + "\n";
    const std::string end = "\n# EOF\n";

    return yes(text.find(sample) != std::string::npos &&
               text.find(end) == text.size() - end.size());
}

static std::string do_observe(const words &w)
{
    auto &client = clients.at(w[1]);

    observers[w[2]] = client.observe(full_key(w[3]), w.size() > 4);
    return "ok";
}

/* Wait for changes until one is as expected; else tell the last one. */
static std::string change_until(const words &w, const words &want)
{
    std::string got = "silence";

    until([&] {
        while (auto change = observers.at(w[1]).next()) {
            got = told(change->info, w, 2);
            if (std::find(want.begin(), want.end(), got) != want.end())
                return true;
        }
        return false;
    });
    return got;
}

static std::string do_unobserve(const words &w)
{
    observers.erase(w[1]);
    return "ok";
}

static std::string do_transfer(const words &w)
{
    locks.at(w[1]).lock.transfer(w[2]);
    return "ok";
}

/* ---- processes ---------------------------------------------------------------- */

static std::string do_process(const words &w)
{
    int down[2], up[2];
    process child;

    if (pipe(down) || pipe(up))
        return "no pipe";
    child.pid = fork();
    if (!child.pid) {
        dup2(down[0], 0);
        dup2(up[1], 1);
        close(down[1]);
        close(up[0]);
        execl(program.c_str(), program.c_str(), "--child", prefix.c_str(),
              url.c_str(), static_cast<char *>(nullptr));
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    child.to = fdopen(down[1], "w");
    child.from = fdopen(up[0], "r");
    processes[w[1]] = child;
    return "ok";
}

static std::string in_process(const std::string &word, const std::string &line)
{
    const char mark = word.back();
    auto &child = processes.at(word.substr(0, word.size() - 1));
    char answer[1024];

    if (mark != '.') {
        std::fprintf(child.to, "%s\n",
                     line.substr(line.find(word) + word.size() + 1).c_str());
        std::fflush(child.to);
    }
    if (mark == '&')
        return "ok";
    if (!std::fgets(answer, sizeof(answer), child.from))
        return "it is gone";
    answer[std::strcspn(answer, "\n")] = 0;
    return answer;
}

static std::string server_file(const char *name)
{
    return std::string(std::getenv("HF_TEST_MEMBERS")) + "/1/" + name;
}

static void send_signal(const std::string &name, int number)
{
    pid_t pid = 0;

    if (name != "server")
        pid = processes.at(name).pid;
    else
        std::ifstream(server_file("pid")) >> pid;
    if (pid > 0)
        kill(pid, number);
}

static std::string do_freeze(const words &w)
{
    send_signal(w[1], SIGSTOP);
    return "ok";
}

static std::string do_thaw(const words &w)
{
    send_signal(w[1], SIGCONT);
    return "ok";
}

static std::string do_kill(const words &w)
{
    send_signal(w[1], SIGKILL);
    return "ok";
}

static std::string do_restart(const words &)
{
    return std::system(server_file("run").c_str()) ? "failed" : "ok";
}

/* ---- scripts ---------------------------------------------------------------- */

static const std::map<std::string, std::string (*)(const words &)> verbs = {
    {"open", do_open},
    {"close", do_close},
    {"lock", do_lock},
    {"all", do_all},
    {"start", do_start},
    {"startall", do_startall},
    {"cancel", do_cancel},
    {"pending", do_pending},
    {"wait", do_wait},
    {"release", do_release},
    {"extend", do_extend},
    {"downgrade", do_downgrade},
    {"held", do_held},
    {"lost", do_lost},
    {"risk", do_risk},
    {"fences", do_fences},
    {"slots", do_slots},
    {"inspect", do_inspect},
    {"holders", do_holders},
    {"list", do_list},
    {"waiters", do_waiters},
    {"check", do_check},
    {"break", do_break},
    {"detach", do_detach},
    {"attach", do_attach},
    {"observe", do_observe},
    {"unobserve", do_unobserve},
    {"transfer", do_transfer},
    {"process", do_process},
    {"freeze", do_freeze},
    {"thaw", do_thaw},
    {"kill", do_kill},
    {"restart", do_restart},
    {"stats", do_stats},
    {"metrics", do_metrics},
    {"collect", do_collect},
    {"extendhandle", do_extendhandle},
    {"releasehandle", do_releasehandle},
};

static std::string run_line(const std::string &line, const words &want)
{
    const auto w = split(line, ' ');

    if (std::strchr(":&.", w[0].back()))
        return in_process(w[0], line);
    try {
        return w[0] == "change" ? change_until(w, want) : verbs.at(w[0])(w);
    } catch (const holdfast::error &error) {
        return std::string(error.name()) + " " + error.text();
    }
}

static bool lacks(const words &traits)
{
    static const words names = {"fenced",    "leased",    "queued",  "notify",
                                "shared",    "reentrant", "detach",  "break",
                                "processes", "machines",  "death",   "twice",
                                "noted",     "permits",   "min_hold"};
    const auto has = holdfast::client(url).describe().traits;

    for (std::size_t i = 1; i < traits.size(); i++) {
        const auto at = std::find(names.begin(), names.end(), traits[i]);
        const auto bit = at == names.end() ? 0u : 1u << (at - names.begin());

        if (traits[i] == "server" ? !std::getenv("HF_TEST_MEMBERS")
                                  : !(has & bit))
            return true;
    }
    return false;
}

/* "", or " # SKIP ...", or "fail". */
static std::string run_script(std::istream &script)
{
    std::string line;

    for (int number = 1; std::getline(script, line); number++) {
        const auto arrow = line.find(" => ");
        words want = {"ok"};

        if (line.empty() || line[0] == '#')
            continue;
        if (line.rfind("needs ", 0) == 0) {
            if (lacks(split(line, ' ')))
                return " # SKIP the service has it not";
            continue;
        }
        if (arrow != std::string::npos) {
            want = split(line.substr(arrow + 4), '|');
            line.erase(arrow);
        }
        const auto got = run_line(line, want);
        if (std::none_of(want.begin(), want.end(), [&](const auto &one) {
                return got == one || got.rfind(one + " ", 0) == 0;
            })) {
            std::cout << "# line " << number << ": " << line << "\n# expected "
                      << want[0] << ", got " << got << "\n";
            return "fail";
        }
    }
    return "";
}

static void clean_up()
{
    if (std::getenv("HF_TEST_MEMBERS"))
        send_signal("server", SIGCONT);
    for (auto &[name, child] : processes) {
        kill(child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
        std::fclose(child.to);
        std::fclose(child.from);
    }
    for (auto &[name, request] : requests)
        request.thread.request_stop();
    for (auto &[name, request] : requests)
        if (request.thread.joinable())
            request.thread.join();
    processes.clear();
    requests.clear();
    observers.clear();
    locks.clear();
    clients.clear();
    handles.clear();
    at_risk.clear();
}

static int run_child()
{
    for (std::string line; std::getline(std::cin, line);)
        std::cout << run_line(line, {}) << std::endl;
    clean_up();
    return 0;
}

int main(int argc, char **argv)
{
    bool failed = false;

    program = argv[0];
    std::signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && !std::strcmp(argv[1], "--child")) {
        prefix = argv[2];
        url = argv[3];
        return run_child();
    }
    if (argc < 3)
        return 64;
    url = argv[1];
    std::cout << "1.." << argc - 2 << std::endl;
    for (int i = 2; i < argc; i++) {
        const std::string path = argv[i];
        std::ifstream script(path);
        std::string how;

        prefix =
            "spec-" + std::to_string(getpid()) + "-" + std::to_string(i) + "-";
        how = run_script(script);
        clean_up();
        failed = failed || how == "fail";
        std::cout << (how == "fail" ? "not ok " : "ok ") << i - 1 << " - "
                  << path.substr(path.rfind('/') + 1)
                  << (how == "fail" ? "" : how) << std::endl;
    }
    return failed;
}
