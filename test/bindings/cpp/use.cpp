/* SPDX-License-Identifier: MIT
 *
 * use.cpp - every call of holdfast.hpp once, to be compiled in every dialect.
 */
#include <holdfast.hpp>

#include <type_traits>

static_assert(!std::is_copy_constructible_v<holdfast::client>);
static_assert(!std::is_copy_constructible_v<holdfast::lock>);
static_assert(!std::is_copy_assignable_v<holdfast::observer>);
static_assert(std::is_nothrow_move_constructible_v<holdfast::client>);
static_assert(std::is_nothrow_move_assignable_v<holdfast::lock>);
static_assert(std::is_nothrow_destructible_v<holdfast::lock>);
static_assert(std::is_base_of_v<std::runtime_error, holdfast::busy>);
static_assert(!std::is_same_v<holdfast::busy, holdfast::timeout>);

int use_results(const char *url);
int use_results(const char *url)
{
    auto opened = holdfast::client::open(url, {});
    holdfast::options o;

    o.ttl = std::chrono::seconds(30);
    if (!opened)
        return opened.error().sys_errno() + *opened.error().name();
    holdfast::client client = std::move(*opened);
    auto got = client.acquire("k", holdfast::no_wait, o);
    if (!got)
        return got.status();
    holdfast::lock lock = std::move(*got);
    auto all = client.acquire_all({"a", "b"});
    auto started = client.start("z", std::chrono::seconds(1), o, &client);
    if (started && started->get() && !started->place())
        started->cancel();
    auto seen = client.try_inspect("k");
    auto found = client.try_list();
    auto who = client.try_holders("k");
    auto service = client.try_describe();
    auto observer = client.try_observe("k");
    if (!lock.try_transfer("heir") && client.try_collect(o.ttl, true))
        return 1;
    if (observer && !observer->next() && !client.next_event())
        client.cancel();
    const auto sum =
        lock.held() + *lock.key() + *lock.token() + lock.slot().value_or(0) +
        lock.lost_fd() + client.events_fd() + (seen && seen->held) +
        (lock.remaining() > holdfast::no_wait) + (lock.loss() == HF_LOSS_NONE);
    if (client.try_check("k", lock.fence()) && lock.try_extend() &&
        lock.try_downgrade() && client.try_break("k", lock.fence()))
        return sum + static_cast<int>(found->size() + who->size()) +
               (service->traits & HF_TRAIT_FENCED ? 1 : 0);
    auto detached = lock.try_detach();
    auto again = client.acquire("k", *detached);
    lock.release_in_background();
    return again->try_release().status() + (all ? 1 : 0);
}

#if HF_CPP_EXCEPTIONS
int use_exceptions();
int use_exceptions()
{
    using namespace std::chrono_literals;

    holdfast::client client("mem:");
    auto lock = client.lock("k");
    auto soon = client.try_lock_for("l", 1h);
    auto now = client.try_lock("m");
    auto all = client.lock_all({"x", "y"});
    auto observer = client.observe("k", true);

    lock.extend(2min);
    lock.extend();
    lock.downgrade();
    lock = client.attach("k", lock.detach());
    client.break_lock("k", lock.fence(), true);
    lock.transfer("heir");
    client.collect(24h);
#if defined(__cpp_lib_jthread)
    std::stop_source stop;
    auto stoppable = client.lock("s", stop.get_token(), {.ttl = 5s});
    auto result = client.acquire_all({"s"}, stop.get_token(), 5s);
#endif
    try {
        lock.release();
    } catch (const holdfast::lost &error) {
        return error.status() + error.what()[0];
    } catch (const holdfast::error &error) {
        return error.sys_errno();
    }
    return static_cast<int>(client.list().size() + client.holders("k").size()) +
           client.check("k", 1) + client.inspect("k").holders +
           (client.describe().ttl_ms > 0) + (soon && now && !all.empty());
}
#endif
