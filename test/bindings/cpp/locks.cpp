/* SPDX-License-Identifier: MIT
 *
 * locks.cpp - what is special to C++: exceptions, destructors, moves, stop tokens.
 *
 *     locks URL
 */
#include <holdfast.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <poll.h>
#include <thread>
#include <unistd.h>

using namespace std::chrono_literals;

static std::string url;

static void check(bool ok, const char *what, int line)
{
    if (ok)
        return;
    char text[256];
    std::snprintf(text, sizeof(text), "line %d: %s", line, what);
    throw std::logic_error(text);
}
#define CHECK(...) check(bool(__VA_ARGS__), #__VA_ARGS__, __LINE__)

template <class Error, class Call> static void throws(Call call)
{
    try {
        call();
    } catch (const Error &) {
        return;
    }
    throw std::logic_error("nothing was thrown");
}

static std::string fresh()
{
    static std::atomic<int> number{0};

    return "cpp-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

static void a_lock_is_released_at_the_end_of_its_scope()
{
    holdfast::client client(url), other(url);
    const auto key = fresh();

    {
        auto lock = client.lock(key);
        CHECK(lock.held() && lock && lock.key() == key);
        CHECK(!other.try_lock(key));
        CHECK(!other.try_lock_for(key, 1ms));
    }
    CHECK(other.try_lock(key));
}

/* What is more than milliseconds can count is as long as can be, not none. */
static void the_longest_duration_is_long()
{
    using float_ms = std::chrono::duration<double, std::milli>;
    holdfast::client client(url), other(url);
    const auto key = fresh();
    auto lock = client.lock(key);
    std::atomic<int> got{0}, ended{0};
    auto wait = [&](auto duration) {
        got += other.try_lock_for(key, duration).has_value();
        ended++;
    };

    CHECK(!other.try_lock_for(key, std::chrono::hours::min()));
    CHECK(!other.try_lock_for(key, float_ms(-1e300)));
    std::thread first(wait, std::chrono::hours::max());
    std::thread second(wait, float_ms(1e300));
    while (other.stats().waiting < 2 && ended == 0)
        std::this_thread::sleep_for(1ms);
    const bool early = ended > 0;
    lock.release();
    first.join();
    second.join();
    CHECK(!early && got == 2);
}

static void an_exception_releases_the_lock_and_passes()
{
    holdfast::client client(url), other(url);
    const auto key = fresh();

    throws<std::out_of_range>([&] {
        auto lock = client.lock(key);
        throw std::out_of_range("mine");
    });
    CHECK(other.try_lock(key));
}

static void destructors_run_in_any_order()
{
    const auto key = fresh();
    holdfast::lock lock;
    holdfast::observer observer;
    {
        holdfast::client client(url);

        lock = client.lock(key);
        observer = client.observe(key);
    }
    CHECK(!lock.held() && lock.loss() == HF_LOSS_CLOSED);
    CHECK(!observer.next());
    throws<holdfast::lost>([&] { lock.release(); });
    throws<holdfast::lost>([&] { lock.release(); });
    CHECK(holdfast::client(url).try_lock(key));
}

static void a_move_takes_the_lock_along()
{
    holdfast::client client(url), other(url);
    const auto a = fresh(), b = fresh();
    auto lock = client.lock(a);
    holdfast::lock moved(std::move(lock));

    CHECK(moved.held() && !lock.held() && !lock.fence());
    moved = client.lock(b); /* What it had is released. */
    CHECK(other.try_lock(a) && !other.try_lock(b));
    holdfast::client third(std::move(client));
    CHECK(moved.held());
    third = holdfast::client(url); /* What it had is closed. */
    CHECK(!moved.held() && other.try_lock(b));
}

static void statuses_are_exceptions_or_results()
{
    holdfast::client client(url), other(url);
    const auto key = fresh();
    auto lock = client.lock(key);

    throws<holdfast::invalid>([] { holdfast::client("nothing:"); });
    throws<holdfast::busy>(
        [&] { other.acquire(key, holdfast::no_wait).value(); });
    throws<holdfast::timeout>([&] { other.acquire(key, 1ms).value(); });
    throws<std::runtime_error>([&] { client.lock(""); });

    auto busy = other.acquire(key, holdfast::no_wait);
    CHECK(!busy && busy.status() == HF_BUSY && *busy.error().text());
    CHECK(!holdfast::client::open("nothing:"));
    throws<holdfast::invalid>([&] { client.lock_all({key, key}); });
    CHECK(lock.try_release() && !lock.try_release());
}

static void a_lost_lock_says_so()
{
    holdfast::client client(url), other(url);

    if (!(client.describe().traits & HF_TRAIT_BREAK))
        return;
    auto lock = client.lock(fresh());
    pollfd lost = {lock.lost_fd(), POLLIN, 0};
    CHECK(poll(&lost, 1, 0) == 0);
    other.break_lock(lock.key(), lock.fence());
    CHECK(poll(&lost, 1, 30000) == 1 && !lock.held());
    CHECK(lock.loss() == HF_LOSS_BROKEN);
    throws<holdfast::lost>([&] { lock.extend(); });
    throws<holdfast::lost>([&] { lock.release(); });
}

static void options_reach_the_service()
{
    holdfast::client client(url), other(url);
    const auto key = fresh();
    const auto traits = client.describe().traits;

    if (!(traits & HF_TRAIT_PERMITS) || !(traits & HF_TRAIT_SHARED))
        return;
    auto one = client.lock(key, {.note = "n", .permits = 2});
    auto two = other.lock(key, {.permits = 2});
    CHECK(*one.slot() + *two.slot() == 1);
    CHECK(client.holders(key).size() == 2 && client.list(key).size() == 1);
    CHECK(client.check(key, one.fence()) && !client.check(key, 1u << 30));
    auto writer = client.lock(key + "s", {.ttl = 20s});
    writer.downgrade();
    CHECK(other.try_lock(key + "s", {.shared = true}));
    CHECK(other.inspect(key + "s").shared);
}

static void several_locks_are_taken_all_or_none()
{
    holdfast::client client(url), other(url);
    const auto a = fresh(), b = fresh();
    auto both = client.lock_all({b, a});

    CHECK(both.size() == 2 && both[0].key() == b && both[1].held());
    CHECK(other.acquire_all({a, fresh()}, 0ms).status() == HF_BUSY);
    both.clear();
    CHECK(other.acquire_all({a, b}, 0ms));
}

static void a_stop_token_ends_a_wait()
{
    holdfast::client client(url), other(url);
    const auto key = fresh();
    auto lock = client.lock(key);
    std::stop_source early;

    early.request_stop();
    throws<holdfast::canceled>([&] { other.lock(key, early.get_token()); });

    hf_status end = HF_OK, end_all = HF_OK;
    {
        std::jthread waiter([&](const std::stop_token &stop) {
            end = other.acquire(key, stop).status();
            end_all = other.acquire_all({key}, stop).status();
        });
        std::this_thread::sleep_for(20ms); /* Any moment is right. */
    }
    CHECK(end == HF_CANCELED && end_all == HF_CANCELED);
    lock.release();
    CHECK(other.try_lock(key));
    CHECK(other.lock(key, std::stop_token()).held());
}

static void an_observer_tells_of_every_holder()
{
    holdfast::client client(url), other(url);
    const auto key = fresh();
    auto observer = client.observe(key);
    pollfd ready = {client.events_fd(), POLLIN, 0};
    auto next = [&] {
        for (;;) {
            if (auto change = observer.next())
                return *change;
            CHECK(poll(&ready, 1, 30000) == 1);
            while (client.next_event())
                ;
        }
    };

    CHECK(!next().info.held);
    auto lock = other.lock(key);
    auto change = next();
    CHECK(change.key == key && change.info.held);
    lock.release();
    CHECK(!next().info.held);
}

static void a_transfer_names_the_next_holder()
{
    holdfast::client client(url), other(url), third(url);
    const auto key = fresh();
    auto lock = client.lock(key);
    auto first = other.start(key, 60s, {.note = "first"}).value();
    auto next = [](holdfast::client &of) {
        pollfd ready = {of.events_fd(), POLLIN, 0};

        CHECK(poll(&ready, 1, 30000) == 1);
        auto event = of.next_event();
        CHECK(event && event->type == HF_GRANTED);
        return holdfast::lock(event->lock);
    };
    auto waiting = [&](int count) {
        while (client.inspect(key).waiters != count)
            std::this_thread::yield();
    };

    if (client.inspect(key).waiters < 0)
        return;
    waiting(1);
    third.start(key, 60s, {.note = "second"}).value();
    waiting(2);
    throws<holdfast::invalid>([&] { lock.transfer("nobody"); });
    lock.transfer("second");
    lock.release();
    next(third).release();
    CHECK(next(other).held());
    CHECK(first.get());
}

static void a_nul_never_cuts_a_text()
{
    const std::string cut("a\0b", 3);
    holdfast::client client(url);
    auto lock = client.lock("a");

    throws<holdfast::invalid>([&] { client.try_lock(cut); });
    throws<holdfast::invalid>([&] { client.lock_all({"x", cut}); });
    throws<holdfast::invalid>([&] { client.try_lock("x", {.owner = cut}); });
    throws<holdfast::invalid>([&] { client.try_lock("x", {.note = cut}); });
    throws<holdfast::invalid>([&] { client.inspect(cut); });
    throws<holdfast::invalid>([&] { client.holders(cut); });
    throws<holdfast::invalid>([&] { client.waiters(cut); });
    throws<holdfast::invalid>([&] { client.list(cut); });
    throws<holdfast::invalid>([&] { client.check(cut, lock.fence()); });
    throws<holdfast::invalid>([&] { client.break_lock(cut, lock.fence()); });
    throws<holdfast::invalid>([&] { client.observe(cut); });
    throws<holdfast::invalid>([&] { client.start(cut).value(); });
    throws<holdfast::invalid>([&] { lock.transfer(cut); });
    throws<holdfast::invalid>([&] { holdfast::client(url + cut); });
    CHECK(lock.held() && !client.inspect("x").held);
}

/* A client that was moved away from, closed or never opened has no handle. */
static void an_empty_client_refuses_every_call()
{
    holdfast::client none, moved(url);
    holdfast::client there(std::move(moved));

    for (auto *client : {&none, &moved}) { // NOLINT: it is the point
        throws<holdfast::invalid>([&] { client->try_lock("k"); });
        throws<holdfast::invalid>([&] { client->inspect("k"); });
        throws<holdfast::invalid>([&] { client->stats(); });
        throws<holdfast::invalid>([&] { client->stats_text(); });
        throws<holdfast::invalid>([&] { client->observe("k"); });
        throws<holdfast::invalid>([&] { client->make_canceler(); });
        CHECK(client->events_fd() == -1 && !client->next_event());
        client->cancel();
        client->close();
    }
    CHECK(there.try_lock(fresh()));
}

static void a_canceler_ends_waits_until_it_is_reset()
{
    holdfast::client client(url), other(url);
    const auto key = fresh();
    auto canceler = other.make_canceler();
    {
        auto lock = client.lock(key);
        std::thread waiter([&] {
            CHECK(other.acquire(key, canceler).status() == HF_CANCELED);
        });

        canceler.cancel();
        waiter.join();
        CHECK(other.acquire_all({key}, canceler).status() == HF_CANCELED);
        canceler.reset();
        CHECK(other.acquire(key, canceler, 1ms).status() == HF_TIMEOUT);
    }
    CHECK(other.acquire(key, canceler));
}

/* Requests whose ends are events, and what they leave in their places. */
static void requests_answer_without_a_wait()
{
    holdfast::client client(url);
    const auto a = fresh(), b = fresh();
    hf_lock *locks[2] = {};
    holdfast::info info;
    auto next = [&] {
        pollfd ready = {client.events_fd(), POLLIN, 0};

        CHECK(poll(&ready, 1, 30000) == 1);
        return client.next_event().value();
    };

    client.start_all({a, b}, locks).value();
    CHECK(next().type == HF_GRANTED && locks[0] && locks[1]);
    holdfast::lock first(locks[0]), second(locks[1]);
    CHECK(first.key() == a && second.key() == b);
    client.start_inspect(a, info).value();
    CHECK(next().error.status == HF_OK && info.held);
    client.start_check(b, second.fence() + 1).value();
    CHECK(next().error.status == HF_LOST);
    client.start_list(a).value();
    const auto found = holdfast::client::listed(next());
    CHECK(found.size() == 1 && found[0].key == a);
}

static void counters_and_services_are_told()
{
    holdfast::client client(url);
    const auto key = fresh();

    client.lock(key, {.max_hold = 10ms});
    auto lock = client.lock(key, {.max_hold = 10ms});
    pollfd gone = {lock.lost_fd(), POLLIN, 0};
    CHECK(poll(&gone, 1, 30000) == 1);
    const auto stats = client.stats();
    CHECK(stats.granted == 2 && stats.lost[HF_LOSS_MAX_HOLD] == 1);
    CHECK(client.stats_text().find("# EOF\n") != std::string::npos);
    const auto kinds = holdfast::services();
    CHECK(std::any_of(kinds.begin(), kinds.end(), [](const auto &kind) {
        return kind.name == "mem" && kind.missing.empty() && kind.traits;
    }));
}

static void many_threads_take_turns()
{
    holdfast::client client(url);
    const auto key = fresh();
    int inside = 0, turns = 0;
    {
        std::vector<std::jthread> threads;

        for (int i = 0; i < 8; i++)
            threads.emplace_back([&] {
                for (int n = 0; n < 20; n++) {
                    auto lock = client.lock(key);

                    if (inside++ == 0)
                        turns++;
                    inside--;
                }
            });
    }
    CHECK(turns == 160);
}

int main(int argc, char **argv)
{
    const std::pair<const char *, std::function<void()>> points[] = {
#define POINT(name) {#name, name}
        POINT(a_lock_is_released_at_the_end_of_its_scope),
        POINT(the_longest_duration_is_long),
        POINT(an_exception_releases_the_lock_and_passes),
        POINT(destructors_run_in_any_order),
        POINT(a_move_takes_the_lock_along),
        POINT(statuses_are_exceptions_or_results),
        POINT(a_lost_lock_says_so),
        POINT(options_reach_the_service),
        POINT(several_locks_are_taken_all_or_none),
        POINT(a_stop_token_ends_a_wait),
        POINT(an_observer_tells_of_every_holder),
        POINT(a_transfer_names_the_next_holder),
        POINT(a_nul_never_cuts_a_text),
        POINT(an_empty_client_refuses_every_call),
        POINT(a_canceler_ends_waits_until_it_is_reset),
        POINT(requests_answer_without_a_wait),
        POINT(counters_and_services_are_told),
        POINT(many_threads_take_turns),
    };
    const char *server = std::getenv("HF_TEST_URL");
    int n = 0, failed = 0;

    url = argc > 1 ? argv[1] : server ? server : "mem:cpp";
    std::printf("1..%zu\n", std::size(points));
    for (const auto &[name, point] : points) {
        try {
            point();
            std::printf("ok %d - %s\n", ++n, name);
        } catch (const std::exception &error) {
            std::printf("# %s\nnot ok %d - %s\n", error.what(), ++n, name);
            failed = 1;
        }
        std::fflush(stdout);
    }
    return failed;
}
