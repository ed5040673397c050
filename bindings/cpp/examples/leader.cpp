/* SPDX-License-Identifier: MIT
 *
 * leader.cpp - several copies of a program, one of which leads.
 *
 *     leader URL NAME TERMS
 *
 * Each copy campaigns; the one that holds the lock leads, does three steps of work
 * and resigns, so that the next one leads.  SIGTERM and SIGINT end a copy that waits
 * as well as one that leads.  A step is done only while the lock is held, and
 * carries the fence to whatever it changes.
 */
#include <holdfast.hpp>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

using namespace std::chrono_literals;

/* The signals are blocked in all threads, and this one waits for them. */
static std::jthread stop_on_signals(std::stop_source &stop)
{
    sigset_t set;

    sigemptyset(&set);
    for (int number : {SIGTERM, SIGINT, SIGUSR1})
        sigaddset(&set, number);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    return std::jthread([set, &stop] {
        int number = 0;

        sigwait(&set, &number);
        stop.request_stop();
    });
}

static void lead(const holdfast::lock &term, const std::string &name,
                 const std::stop_token &stop)
{
    for (int step = 1; step <= 3 && term.held() && !stop.stop_requested();
         step++) {
        std::cout << name << ": step " << step << " under fence "
                  << term.fence() << std::endl;
        std::this_thread::sleep_for(10ms);
    }
}

int main(int argc, char **argv)
try {
    if (argc != 4) {
        std::cerr << "usage: leader URL NAME TERMS\n";
        return 64;
    }
    const std::string name = argv[2];
    std::stop_source stop;
    auto signals = stop_on_signals(stop);
    holdfast::client client(argv[1]);
    std::cout << name << ": a candidate" << std::endl;

    for (int terms = std::atoi(argv[3]); terms > 0 && !stop.stop_requested();
         terms--) {
        auto term = client.lock("leader", stop.get_token(), {.note = name});

        lead(term, name, stop.get_token());
        term.release();
    }
    pthread_kill(signals.native_handle(), SIGUSR1);
    return 0;
} catch (const holdfast::canceled &) {
    std::cout << argv[2] << ": stopped" << std::endl;
    std::quick_exit(0);
} catch (const holdfast::error &error) {
    std::cerr << "leader: " << error.name() << ": " << error.what() << "\n";
    std::quick_exit(1);
}
