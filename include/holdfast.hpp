/* SPDX-License-Identifier: MIT
 *
 * holdfast.hpp - distributed locks for C++17, in one header.
 *
 *     holdfast::client client{"redis://localhost"};
 *     auto lock = client.lock("nightly");
 *     while (work_left() && lock.held())
 *         do_some_work(lock.fence());
 *
 * Clients, locks and observers are owners that can be moved and not copied; a
 * destructor closes, releases or stops, and never throws.  They may be destroyed
 * in any order.  What a call promises is said in holdfast.h; link with
 * -lholdfast.
 *
 * ERRORS  lock(), release() and the like throw: each status is a class, and all
 *   are a holdfast::error.  acquire() throws nothing and returns a result<lock>,
 *   which is the lock or the failure; with -fno-exceptions there are only calls
 *   of that kind.
 *
 * CANCELLATION  With C++20 a wait takes a std::stop_token.
 */
#ifndef HOLDFAST_HPP
#define HOLDFAST_HPP

#include <holdfast.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#if defined(__has_include)
#if __has_include(<stop_token>)
#include <stop_token>
#endif
#endif

#if defined(__cpp_exceptions)
#define HF_CPP_EXCEPTIONS 1
#else
#define HF_CPP_EXCEPTIONS 0
#endif

namespace holdfast
{

using std::chrono::milliseconds;

/* ---- failures ---------------------------------------------------------- */

/* What went wrong: a status and a line of text. */
class failure
{
  public:
    explicit failure(const hf_error &err) noexcept : err_(err)
    {
    }
    hf_status status() const noexcept
    {
        return err_.status;
    }
    int sys_errno() const noexcept
    {
        return err_.sys_errno;
    }
    const char *text() const noexcept
    {
        return err_.text;
    }
    const char *name() const noexcept
    {
        return hf_status_name(err_.status);
    }

  private:
    hf_error err_;
};

/* The base of all exceptions; failure() has the status. */
class error : public std::runtime_error, public failure
{
  public:
    explicit error(const failure &what)
        : std::runtime_error(what.text()), failure(what)
    {
    }
};

/* One class for each status: catch (const holdfast::busy &). */
template <hf_status Status> class error_of : public error
{
  public:
    using error::error;
};
using busy = error_of<HF_BUSY>;
using timeout = error_of<HF_TIMEOUT>;
using canceled = error_of<HF_CANCELED>;
using lost = error_of<HF_LOST>;
using uncertain = error_of<HF_UNCERTAIN>;
using unavailable = error_of<HF_UNAVAILABLE>;
using denied = error_of<HF_DENIED>;
using invalid = error_of<HF_INVALID>;
using unsupported = error_of<HF_UNSUPPORTED>;
using protocol = error_of<HF_PROTOCOL>;
using no_memory = error_of<HF_NOMEM>;
using system = error_of<HF_SYSTEM>;

#if HF_CPP_EXCEPTIONS
[[noreturn]] inline void raise(const failure &what)
{
    switch (what.status()) {
    case HF_BUSY:
        throw busy(what);
    case HF_TIMEOUT:
        throw timeout(what);
    case HF_CANCELED:
        throw canceled(what);
    case HF_LOST:
        throw lost(what);
    case HF_UNCERTAIN:
        throw uncertain(what);
    case HF_UNAVAILABLE:
        throw unavailable(what);
    case HF_DENIED:
        throw denied(what);
    case HF_INVALID:
        throw invalid(what);
    case HF_UNSUPPORTED:
        throw unsupported(what);
    case HF_PROTOCOL:
        throw protocol(what);
    case HF_NOMEM:
        throw no_memory(what);
    case HF_SYSTEM:
        throw system(what);
    case HF_OK:
        break;
    }
    throw error(what);
}
#endif

/* A value or the failure to get one, as std::expected of C++23. */
template <class T> class result
{
  public:
    result(T value) : held_(std::in_place_index<0>, std::move(value))
    {
    }
    result(const failure &what) : held_(std::in_place_index<1>, what)
    {
    }
    result(const hf_error &err) : result(failure(err))
    {
    }
    bool has_value() const noexcept
    {
        return held_.index() == 0;
    }
    explicit operator bool() const noexcept
    {
        return has_value();
    }
    hf_status status() const noexcept
    {
        return has_value() ? HF_OK : error().status();
    }
    T &operator*() noexcept
    {
        return *std::get_if<0>(&held_);
    }
    T *operator->() noexcept
    {
        return std::get_if<0>(&held_);
    }
    const failure &error() const noexcept
    {
        return *std::get_if<1>(&held_);
    }
#if HF_CPP_EXCEPTIONS
    /* The value; or throw the failure. */
    T value() &&
    {
        if (!has_value())
            raise(error());
        return std::move(*std::get_if<0>(&held_));
    }
#endif

  private:
    std::variant<T, failure> held_;
};

/* A call that returns nothing but how it went. */
template <> class result<void>
{
  public:
    result(hf_status st, const hf_error &err) noexcept
        : err_(st ? err : hf_error{HF_OK, 0, ""})
    {
    }
    bool has_value() const noexcept
    {
        return err_.status() == HF_OK;
    }
    explicit operator bool() const noexcept
    {
        return has_value();
    }
    hf_status status() const noexcept
    {
        return err_.status();
    }
    const failure &error() const noexcept
    {
        return err_;
    }
#if HF_CPP_EXCEPTIONS
    void value() const
    {
        if (!has_value())
            raise(err_);
    }
#endif

  private:
    failure err_;
};

/* ---- values ------------------------------------------------------------ */

/* A limit for a wait: no limit unless it is given. */
inline constexpr milliseconds forever{-1};
inline constexpr milliseconds no_wait{0};

/* The options of a lock, see struct hf_lock_opts; what is not set has its
 * default.  With C++20: {.ttl = 30s, .shared = true}. */
struct options {
    milliseconds ttl{0};
    std::string owner{};
    std::string note{};
    bool shared = false;
    bool manual = false;
    bool fair = false;
    bool poll = false;
    std::int32_t permits = 0;
    std::int32_t max_tries = 0;
    milliseconds retry{0};
    milliseconds linger{0};
    milliseconds max_hold{0};
    milliseconds min_hold{0};
    std::int32_t local_turns = 0;
};

using info = hf_info;

/* What a client has counted. */
using stats = struct hf_stats;

/* A detached lock. */
using handle = hf_handle;

namespace detail
{

inline hf_lock_opts to_c(const options &o)
{
    hf_lock_opts ret = HF_LOCK_OPTS_INIT;

    ret.ttl_ms = o.ttl.count();
    ret.owner = o.owner.empty() ? nullptr : o.owner.c_str();
    ret.note = o.note.empty() ? nullptr : o.note.c_str();
    ret.flags = (o.shared ? unsigned{HF_SHARED} : 0) |
                (o.manual ? unsigned{HF_MANUAL} : 0) |
                (o.fair ? unsigned{HF_FAIR} : 0) |
                (o.poll ? unsigned{HF_POLL} : 0);
    ret.max_tries = o.max_tries;
    ret.retry_ms = o.retry.count();
    ret.linger_ms = o.linger.count();
    ret.max_hold_ms = o.max_hold.count();
    ret.min_hold_ms = o.min_hold.count();
    ret.local_turns = o.local_turns;
    ret.permits = o.permits;
    return ret;
}

/* The failure if a text has a NUL inside.  C would read up to there, and another
 * key than was asked for would be locked. */
inline bool has_nul(hf_error &err,
                    std::initializer_list<const std::string *> all)
{
    for (const auto *text : all)
        if (text->find('\0') != std::string::npos) {
            err = {HF_INVALID, 0, "a text contains NUL"};
            return true;
        }
    return false;
}

/* At least the duration that was asked for, as far as milliseconds can count;
 * what is no number is 0. */
template <class Rep, class Period>
milliseconds at_least(std::chrono::duration<Rep, Period> duration)
{
    using count = std::chrono::duration<long double, std::milli>;
    const auto most = static_cast<long double>(milliseconds::max().count());
    const auto ms = count(duration).count();

    if (ms >= most)
        return milliseconds::max();
    if (ms <= -most)
        return milliseconds::min();
    return ms == ms ? std::chrono::ceil<milliseconds>(duration)
                    : milliseconds::zero();
}

/* What unique_ptr calls to end a handle. */
struct ender {
    void operator()(hf_client *client) const noexcept
    {
        hf_close(client);
    }
    void operator()(hf_lock *lock) const noexcept
    {
        hf_release(lock, nullptr);
    }
    void operator()(hf_observer *observer) const noexcept
    {
        hf_observe_stop(observer);
    }
    void operator()(hf_canceler *canceler) const noexcept
    {
        hf_canceler_free(canceler);
    }
};
template <class T> using owned = std::unique_ptr<T, ender>;

} // namespace detail

/* ---- lock -------------------------------------------------------------- */

/* A lock that is held, or was.  The destructor releases it; release() does so
 * too and tells whether it was held to the end. */
class lock
{
  public:
    lock() noexcept = default;
    /* Own a handle of the C library. */
    explicit lock(hf_lock *own) noexcept : own_(own)
    {
    }

    bool held() const noexcept
    {
        return own_ && hf_held(own_.get());
    }
    explicit operator bool() const noexcept
    {
        return held();
    }
    std::uint64_t fence() const noexcept
    {
        return own_ ? hf_fence(own_.get()) : 0;
    }
    std::optional<std::int32_t> slot() const noexcept
    {
        const auto ret = own_ ? hf_slot(own_.get()) : -1;

        return ret < 0 ? std::nullopt : std::optional<std::int32_t>(ret);
    }
    const char *key() const noexcept
    {
        return own_ ? hf_key(own_.get()) : "";
    }
    const char *token() const noexcept
    {
        return own_ ? hf_token(own_.get()) : "";
    }
    /* milliseconds::max() where the service never takes a lock away. */
    milliseconds remaining() const noexcept
    {
        return milliseconds(own_ ? hf_remaining_ms(own_.get()) : 0);
    }
    hf_loss loss() const noexcept
    {
        return own_ ? hf_lost_reason(own_.get()) : HF_LOSS_NONE;
    }
    /* Becomes readable when the lock is lost; -1 if there is none. */
    int lost_fd() const noexcept
    {
        return own_ ? hf_lost_fd(own_.get()) : -1;
    }
    hf_lock *get() const noexcept
    {
        return own_.get();
    }
    /* Give the handle to the caller, who ends it with hf_release(). */
    hf_lock *unwrap() noexcept
    {
        return own_.release();
    }

    /* These end the lock, whatever comes out. */
    result<void> try_release() noexcept
    {
        hf_error err = {HF_LOST, 0, "there is no lock"};

        return {own_ ? hf_release(own_.release(), &err) : HF_LOST, err};
    }
    result<handle> try_detach() noexcept
    {
        hf_error err = {HF_LOST, 0, "there is no lock"};
        handle ret = HF_HANDLE_INIT;

        if (!own_ || hf_detach(own_.release(), &ret, &err))
            return err;
        return ret;
    }
    /* Release without waiting for the service; nobody is told how it went. */
    void release_in_background() noexcept
    {
        if (own_)
            hf_release_start(own_.release(), nullptr, nullptr);
    }

    result<void> try_extend(milliseconds ttl = no_wait) noexcept
    {
        hf_error err = {HF_LOST, 0, "there is no lock"};

        return {own_ ? hf_extend(own_.get(), ttl.count(), &err) : HF_LOST, err};
    }
    result<void> try_downgrade() noexcept
    {
        hf_error err = {HF_LOST, 0, "there is no lock"};

        return {own_ ? hf_downgrade(own_.get(), &err) : HF_LOST, err};
    }
    /* Let the waiter of that token, owner id or note be the next. */
    result<void> try_transfer(const std::string &heir) noexcept
    {
        hf_error err = {HF_LOST, 0, "there is no lock"};

        if (detail::has_nul(err, {&heir}))
            return {HF_INVALID, err};
        return {own_ ? hf_transfer(own_.get(), heir.c_str(), &err) : HF_LOST,
                err};
    }

#if HF_CPP_EXCEPTIONS
    void release()
    {
        try_release().value();
    }
    handle detach()
    {
        return try_detach().value();
    }
    /* Renew now, with another lease if it is given. */
    template <class Rep, class Period>
    void extend(std::chrono::duration<Rep, Period> ttl)
    {
        try_extend(detail::at_least(ttl)).value();
    }
    void extend()
    {
        try_extend().value();
    }
    void downgrade()
    {
        try_downgrade().value();
    }
    void transfer(const std::string &heir)
    {
        try_transfer(heir).value();
    }
#endif

  private:
    detail::owned<hf_lock> own_;
};

/* A request that was started, until next_event() tells its end: HF_GRANTED, whose
 * `lock` is to be owned by a holdfast::lock, or HF_FAILED. */
class request
{
  public:
    explicit request(hf_request *name) noexcept : name_(name)
    {
    }
    void cancel() noexcept
    {
        hf_request_cancel(name_);
    }
    /* The place in the queue of the service, 1 is next; 0 is not known. */
    std::int32_t place() const noexcept
    {
        return hf_request_place(name_);
    }
    /* The same as event.request. */
    hf_request *get() const noexcept
    {
        return name_;
    }

  private:
    hf_request *name_;
};

/* ---- observer ---------------------------------------------------------- */

struct change {
    std::string key;
    holdfast::info info;
};

/* Changes of a lock; the descriptor of the client says when to ask. */
class observer
{
  public:
    observer() noexcept = default;
    explicit observer(hf_observer *own) noexcept : own_(own)
    {
    }
    /* The next change; empty if there is none now.  Never blocks. */
    std::optional<change> next()
    {
        hf_change ret = HF_CHANGE_INIT;

        if (!own_ || !hf_observer_next(own_.get(), &ret))
            return std::nullopt;
        return change{ret.key, ret.info};
    }
    hf_observer *get() const noexcept
    {
        return own_.get();
    }

  private:
    detail::owned<hf_observer> own_;
};

/* ---- canceler ---------------------------------------------------------- */

/* Ends the waits that were given it, also those that begin later, until reset().
 * For C++17, where there is no std::stop_token, and for signal handlers: cancel()
 * may be called in one.  client::make_canceler() makes it. */
class canceler
{
  public:
    canceler() noexcept = default;
    explicit canceler(hf_canceler *own) noexcept : own_(own)
    {
    }
    void cancel() noexcept
    {
        if (own_)
            hf_canceler_cancel(own_.get());
    }
    void reset() noexcept
    {
        if (own_)
            hf_canceler_reset(own_.get());
    }
    hf_canceler *get() const noexcept
    {
        return own_.get();
    }

  private:
    detail::owned<hf_canceler> own_;
};

/* ---- client ------------------------------------------------------------ */

struct client_options {
    milliseconds timeout{0}; /* of each request to the service */
    std::string note{};
    milliseconds connect{0}; /* for so long, in the background; or forever */
    hf_log_fn *log = nullptr;
    void *log_arg = nullptr;
    hf_log_level log_level = HF_LOG_WARNING;
};

/* A connection to a lock service, for any number of threads. */
class client
{
  public:
    client() noexcept = default;

    static result<client> open(const std::string &url,
                               const client_options &o = {})
    {
        hf_client_opts opts = HF_CLIENT_OPTS_INIT;
        hf_client *own = nullptr;
        hf_error err;

        opts.timeout_ms = o.timeout.count();
        opts.note = o.note.empty() ? nullptr : o.note.c_str();
        opts.connect_ms = o.connect.count();
        opts.log = o.log;
        opts.log_arg = o.log_arg;
        opts.log_level = o.log_level;
        if (detail::has_nul(err, {&url, &o.note}) ||
            hf_open(url.c_str(), &opts, &own, &err))
            return err;
        return client(own);
    }
#if HF_CPP_EXCEPTIONS
    explicit client(const std::string &url, const client_options &o = {})
        : client(open(url, o).value())
    {
    }
#endif

    hf_client *get() const noexcept
    {
        return own_.get();
    }
    /* Close it now, and release what it holds. */
    void close() noexcept
    {
        own_.reset();
    }
    /* End every wait of this client with HF_CANCELED. */
    void cancel() noexcept
    {
        if (own_)
            hf_cancel(own_.get());
    }

    /* -- acquiring -- */

    result<holdfast::lock> acquire(const std::string &key,
                                   milliseconds wait = forever,
                                   const options &o = {})
    {
        return acquire(key, wait, o, nullptr);
    }
    result<std::vector<holdfast::lock>> acquire_all(
        const std::vector<std::string> &keys, milliseconds wait = forever,
        const options &o = {})
    {
        return acquire_all(keys, wait, o, nullptr);
    }
    result<holdfast::lock> acquire(const std::string &key, const canceler &by,
                                   milliseconds wait = forever,
                                   const options &o = {})
    {
        return acquire(key, wait, o, by.get());
    }
    result<std::vector<holdfast::lock>> acquire_all(
        const std::vector<std::string> &keys, const canceler &by,
        milliseconds wait = forever, const options &o = {})
    {
        return acquire_all(keys, wait, o, by.get());
    }
    result<canceler> try_canceler()
    {
        hf_canceler *ret = nullptr;
        hf_error err;

        if (hf_canceler_new(get(), &ret, &err))
            return err;
        return canceler(ret);
    }
    result<holdfast::lock> acquire(const std::string &key,
                                   const holdfast::handle &detached,
                                   const options &o = {})
    {
        hf_lock_opts opts = detail::to_c(o);
        hf_lock *ret = nullptr;
        hf_error err;

        if (detail::has_nul(err, {&key, &o.owner, &o.note}) ||
            hf_attach(get(), key.c_str(), &detached, &opts, &ret, &err))
            return err;
        return holdfast::lock(ret);
    }

#if defined(__cpp_lib_jthread)
    result<holdfast::lock> acquire(const std::string &key,
                                   const std::stop_token &stop,
                                   milliseconds wait = forever,
                                   const options &o = {})
    {
        return stoppable<holdfast::lock>(
            stop, [&](hf_canceler *by) { return acquire(key, wait, o, by); });
    }
    result<std::vector<holdfast::lock>> acquire_all(
        const std::vector<std::string> &keys, const std::stop_token &stop,
        milliseconds wait = forever, const options &o = {})
    {
        return stoppable<std::vector<holdfast::lock>>(
            stop,
            [&](hf_canceler *by) { return acquire_all(keys, wait, o, by); });
    }
#endif

#if HF_CPP_EXCEPTIONS
    /* Wait for the lock as long as it takes. */
    holdfast::lock lock(const std::string &key, const options &o = {})
    {
        return acquire(key, forever, o).value();
    }
    std::vector<holdfast::lock> lock_all(const std::vector<std::string> &keys,
                                         const options &o = {})
    {
        return acquire_all(keys, forever, o).value();
    }
    /* The lock if it is free; empty if somebody else has it. */
    std::optional<holdfast::lock> try_lock(const std::string &key,
                                           const options &o = {})
    {
        return or_empty(acquire(key, no_wait, o));
    }
    /* The lock; empty if somebody else had it all the time. */
    template <class Rep, class Period>
    std::optional<holdfast::lock> try_lock_for(
        const std::string &key, std::chrono::duration<Rep, Period> duration,
        const options &o = {})
    {
        return or_empty(
            acquire(key, (std::max)(no_wait, detail::at_least(duration)), o));
    }
    canceler make_canceler()
    {
        return try_canceler().value();
    }
    /* Take up a lock that was detached. */
    holdfast::lock attach(const std::string &key,
                          const holdfast::handle &detached,
                          const options &o = {})
    {
        return acquire(key, detached, o).value();
    }
#if defined(__cpp_lib_jthread)
    holdfast::lock lock(const std::string &key, const std::stop_token &stop,
                        const options &o = {})
    {
        return acquire(key, stop, forever, o).value();
    }
#endif
#endif

    /* -- detached locks -- */

    /* Renew or release a detached lock without taking it up. */
    result<void> try_extend(const std::string &key,
                            const holdfast::handle &detached,
                            const options &o = {})
    {
        return by_handle(hf_handle_extend, key, detached, o);
    }
    result<void> try_release(const std::string &key,
                             const holdfast::handle &detached,
                             const options &o = {})
    {
        return by_handle(hf_handle_release, key, detached, o);
    }
#if HF_CPP_EXCEPTIONS
    void extend(const std::string &key, const holdfast::handle &detached,
                const options &o = {})
    {
        try_extend(key, detached, o).value();
    }
    void release(const std::string &key, const holdfast::handle &detached,
                 const options &o = {})
    {
        try_release(key, detached, o).value();
    }
#endif

    /* -- without waiting -- */

    /* Begin to acquire; `user` comes back in the events of the request and of
     * its lock. */
    result<request> start(const std::string &key, milliseconds wait = forever,
                          const options &o = {}, void *user = nullptr)
    {
        hf_lock_opts opts = detail::to_c(o);
        hf_request *ret = nullptr;
        hf_error err;

        if (detail::has_nul(err, {&key, &o.owner, &o.note}) ||
            hf_acquire_start(get(), key.c_str(), wait.count(), &opts, user,
                             &ret, &err))
            return err;
        return request(ret);
    }
    /* The same for several keys.  `locks` has room for all of them, stays where it
     * is until HF_GRANTED, and is filled then. */
    result<request> start_all(const std::vector<std::string> &keys,
                              hf_lock **locks, milliseconds wait = forever,
                              const options &o = {}, void *user = nullptr)
    {
        hf_lock_opts opts = detail::to_c(o);
        hf_request *ret = nullptr;
        std::vector<const char *> names;
        hf_error err;

        if (!to_names(keys, o, names, err) ||
            hf_acquire_all_start(get(), names.data(), names.size(),
                                 wait.count(), &opts, locks, user, &ret, &err))
            return err;
        return request(ret);
    }
    /* inspect(), check() and list() whose end is HF_ANSWERED; `ret` must be there
     * until then. */
    result<request> start_inspect(const std::string &key, holdfast::info &ret,
                                  void *user = nullptr)
    {
        hf_request *name = nullptr;
        hf_error err;

        ret = HF_INFO_INIT;
        if (detail::has_nul(err, {&key}) ||
            hf_inspect_start(get(), key.c_str(), &ret, user, &name, &err))
            return err;
        return request(name);
    }
    result<request> start_check(const std::string &key, std::uint64_t fence,
                                void *user = nullptr)
    {
        hf_request *name = nullptr;
        hf_error err;

        if (detail::has_nul(err, {&key}) ||
            hf_check_start(get(), key.c_str(), fence, user, &name, &err))
            return err;
        return request(name);
    }
    result<request> start_list(const std::string &prefix = "",
                               void *user = nullptr)
    {
        hf_request *name = nullptr;
        hf_error err;

        if (detail::has_nul(err, {&prefix}) ||
            hf_list_start(get(), prefix.c_str(), user, &name, &err))
            return err;
        return request(name);
    }
    /* What start_list() has found, after HF_ANSWERED with HF_OK; call it once. */
    static std::vector<change> listed(const hf_event &answered)
    {
        std::vector<change> ret;
        hf_change one = HF_CHANGE_INIT;

        while (hf_list_next(answered.request, &one))
            ret.push_back({one.key, one.info});
        return ret;
    }
    /* Readable while next_event() has something. */
    int events_fd() const noexcept
    {
        return hf_events_fd(get());
    }
    std::optional<hf_event> next_event() noexcept
    {
        hf_event ret = HF_EVENT_INIT;

        if (!hf_next_event(get(), &ret))
            return std::nullopt;
        return ret;
    }

    /* -- looking -- */

    result<holdfast::info> try_inspect(const std::string &key)
    {
        holdfast::info ret = HF_INFO_INIT;
        hf_error err;

        if (detail::has_nul(err, {&key}) ||
            hf_inspect(get(), key.c_str(), &ret, &err))
            return err;
        return ret;
    }
    result<std::vector<holdfast::info>> try_holders(const std::string &key)
    {
        std::vector<holdfast::info> ret;
        hf_error err;

        if (detail::has_nul(err, {&key}) ||
            hf_holders(get(), key.c_str(), add_holder, &ret, &err))
            return err;
        return result<std::vector<holdfast::info>>(std::move(ret));
    }
    /* Those who wait, in their order. */
    result<std::vector<hf_waiter>> try_waiters(const std::string &key)
    {
        std::vector<hf_waiter> ret;
        hf_error err;

        if (detail::has_nul(err, {&key}) ||
            hf_waiters(get(), key.c_str(), add_waiter, &ret, &err))
            return err;
        return result<std::vector<hf_waiter>>(std::move(ret));
    }
    result<std::vector<change>> try_list(const std::string &prefix = "")
    {
        std::vector<change> ret;
        hf_error err;

        if (detail::has_nul(err, {&prefix}) ||
            hf_list(get(), prefix.c_str(), add_key, &ret, &err))
            return err;
        return result<std::vector<change>>(std::move(ret));
    }
    result<void> try_check(const std::string &key, std::uint64_t fence)
    {
        hf_error err;
        const auto st = detail::has_nul(err, {&key})
                            ? HF_INVALID
                            : hf_check(get(), key.c_str(), fence, &err);

        return {st, err};
    }
    /* Take the lock away; by force, free it at once. */
    result<void> try_break(const std::string &key, std::uint64_t fence,
                           bool force = false)
    {
        hf_error err;
        const auto st = detail::has_nul(err, {&key})
                            ? HF_INVALID
                            : (force ? hf_break_force : hf_break)(
                                  get(), key.c_str(), fence, &err);

        return {st, err};
    }
    /* Remove what keys left behind that have been free for so long. */
    result<hf_collected> try_collect(milliseconds older, bool dry_run = false)
    {
        hf_collected ret = HF_COLLECTED_INIT;
        hf_error err;

        if (hf_collect(get(), older.count(), dry_run, &ret, &err))
            return err;
        return ret;
    }
    /* What the client has counted; it asks no service. */
    result<holdfast::stats> try_stats()
    {
        holdfast::stats ret = HF_STATS_INIT;
        hf_error err;

        if (hf_stats(get(), &ret, &err))
            return err;
        return ret;
    }
    /* The same as OpenMetrics text, for an endpoint that Prometheus reads. */
    result<std::string> try_stats_text()
    {
        std::string ret;
        std::size_t need = 0;
        hf_error err;

        if (hf_stats_text(get(), nullptr, 0, &need, &err))
            return err;
        ret.resize(need + 1024); /* numbers may become longer meanwhile */
        if (hf_stats_text(get(), &ret[0], ret.size(), &need, &err))
            return err;
        ret.resize(need - 1);
        return result<std::string>(std::move(ret));
    }
    result<hf_service> try_describe()
    {
        hf_service ret = HF_SERVICE_INIT;
        hf_error err;

        if (hf_describe(get(), &ret, &err))
            return err;
        return ret;
    }
    result<observer> try_observe(const std::string &key, bool prefix = false)
    {
        hf_observer *ret = nullptr;
        hf_error err;

        if (detail::has_nul(err, {&key}) ||
            hf_observe_start(get(), key.c_str(), prefix ? HF_PREFIX : 0,
                             nullptr, &ret, &err))
            return err;
        return observer(ret);
    }

#if HF_CPP_EXCEPTIONS
    holdfast::info inspect(const std::string &key)
    {
        return try_inspect(key).value();
    }
    std::vector<holdfast::info> holders(const std::string &key)
    {
        return try_holders(key).value();
    }
    std::vector<hf_waiter> waiters(const std::string &key)
    {
        return try_waiters(key).value();
    }
    std::vector<change> list(const std::string &prefix = "")
    {
        return try_list(prefix).value();
    }
    bool check(const std::string &key, std::uint64_t fence)
    {
        const auto ret = try_check(key, fence);

        if (ret.status() != HF_LOST)
            ret.value();
        return ret.has_value();
    }
    void break_lock(const std::string &key, std::uint64_t fence,
                    bool force = false)
    {
        try_break(key, fence, force).value();
    }
    template <class Rep, class Period>
    hf_collected collect(std::chrono::duration<Rep, Period> older,
                         bool dry_run = false)
    {
        return try_collect(detail::at_least(older), dry_run).value();
    }
    holdfast::stats stats()
    {
        return try_stats().value();
    }
    std::string stats_text()
    {
        return try_stats_text().value();
    }
    hf_service describe()
    {
        return try_describe().value();
    }
    observer observe(const std::string &key, bool prefix = false)
    {
        return try_observe(key, prefix).value();
    }
#endif

  private:
    explicit client(hf_client *own) noexcept : own_(own)
    {
    }

    using handle_fn = hf_status(hf_client *, const char *, const hf_handle *,
                                const hf_lock_opts *, hf_error *);
    result<void> by_handle(handle_fn *fn, const std::string &key,
                           const holdfast::handle &detached, const options &o)
    {
        const hf_lock_opts opts = detail::to_c(o);
        hf_error err;
        const auto st = detail::has_nul(err, {&key, &o.owner, &o.note})
                            ? HF_INVALID
                            : fn(get(), key.c_str(), &detached, &opts, &err);

        return {st, err};
    }

    result<holdfast::lock> acquire(const std::string &key, milliseconds wait,
                                   const options &o, hf_canceler *by)
    {
        hf_lock_opts opts = detail::to_c(o);
        hf_lock *ret = nullptr;
        hf_error err;

        opts.canceler = by;
        if (detail::has_nul(err, {&key, &o.owner, &o.note}) ||
            hf_acquire(get(), key.c_str(), wait.count(), &opts, &ret, &err))
            return err;
        return holdfast::lock(ret);
    }
    result<std::vector<holdfast::lock>> acquire_all(
        const std::vector<std::string> &keys, milliseconds wait,
        const options &o, hf_canceler *by)
    {
        hf_lock_opts opts = detail::to_c(o);
        std::vector<hf_lock *> locks(keys.size());
        std::vector<holdfast::lock> ret(keys.size());
        std::vector<const char *> names;
        hf_error err;

        opts.canceler = by;
        if (!to_names(keys, o, names, err) ||
            hf_acquire_all(get(), names.data(), names.size(), wait.count(),
                           &opts, locks.data(), &err))
            return err;
        for (std::size_t i = 0; i < locks.size(); i++)
            ret[i] = holdfast::lock(locks[i]);
        return result<std::vector<holdfast::lock>>(std::move(ret));
    }

    static bool to_names(const std::vector<std::string> &keys, const options &o,
                         std::vector<const char *> &ret, hf_error &err)
    {
        if (detail::has_nul(err, {&o.owner, &o.note}))
            return false;
        for (const auto &key : keys) {
            if (detail::has_nul(err, {&key}))
                return false;
            ret.push_back(key.c_str());
        }
        return true;
    }

#if defined(__cpp_lib_jthread)
    /* A canceler is sticky, so a stop that comes before the wait counts. */
    template <class T, class Call>
    result<T> stoppable(const std::stop_token &stop, const Call &call)
    {
        hf_canceler *by = nullptr;
        hf_error err;

        if (hf_canceler_new(get(), &by, &err))
            return err;
        const detail::owned<hf_canceler> own(by);
        const std::stop_callback wake(stop, [by] { hf_canceler_cancel(by); });
        return call(by);
    }
#endif

#if HF_CPP_EXCEPTIONS
    static std::optional<holdfast::lock> or_empty(result<holdfast::lock> got)
    {
        if (got.status() == HF_BUSY || got.status() == HF_TIMEOUT)
            return std::nullopt;
        return std::move(got).value();
    }
#endif

    /* No memory for these ends the program: an exception cannot pass through
     * the library. */
    static bool add_holder(void *to, const hf_info *holder) noexcept
    {
        static_cast<std::vector<holdfast::info> *>(to)->push_back(*holder);
        return true;
    }
    static bool add_waiter(void *to, const hf_waiter *waiter) noexcept
    {
        static_cast<std::vector<hf_waiter> *>(to)->push_back(*waiter);
        return true;
    }
    static bool add_key(void *to, const char *key,
                        const hf_info *found) noexcept
    {
        static_cast<std::vector<change> *>(to)->push_back({key, *found});
        return true;
    }

    detail::owned<hf_client> own_;
};

/* ---- services ---------------------------------------------------------- */

/* A kind of service that this build knows, see struct hf_service_kind. */
struct service_kind {
    std::string name, schemes, options, page, tested, module, missing;
    unsigned traits, varies;
};

namespace detail
{

inline bool add_kind(void *to, const hf_service_kind *kind) noexcept
{
    const auto text = [](const char *s) { return std::string(s ? s : ""); };

    static_cast<std::vector<service_kind> *>(to)->push_back(
        {text(kind->name), text(kind->schemes), text(kind->options),
         text(kind->page), text(kind->tested), text(kind->module),
         text(kind->missing), kind->traits, kind->varies});
    return true;
}

} // namespace detail

/* All of them; no server is asked. */
inline result<std::vector<service_kind>> try_services()
{
    std::vector<service_kind> ret;
    hf_error err;

    if (hf_services(detail::add_kind, &ret, &err))
        return err;
    return result<std::vector<service_kind>>(std::move(ret));
}
#if HF_CPP_EXCEPTIONS
inline std::vector<service_kind> services()
{
    return try_services().value();
}
#endif

} // namespace holdfast

#endif
