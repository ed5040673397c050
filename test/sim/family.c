/* SPDX-License-Identifier: MIT
 *
 * family.c - the families of worlds: services, weather, workloads.
 *
 * Each family is one point of the test.  A seed belongs to the family of its
 * remainder, so a seed alone says which world it is.
 */
#include "sim.h"

#define LEASED (HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_BREAK)
#define NOTIFY HF_TRAIT_NOTIFY
#define QUEUED (HF_TRAIT_NOTIFY | HF_TRAIT_QUEUED)
#define BOUND  (LEASED | HFI_TRAIT_BOUND)
#define GROUPS (HF_TRAIT_SHARED | HF_TRAIT_REENTRANT)

#define PLAIN (SIM_FAIR | SIM_MAX_HOLD | SIM_EXTEND | SIM_EVENTS | SIM_TURNS)
#define ALL                                                                    \
    (PLAIN | SIM_MANUAL | SIM_POLL | SIM_OWNER | SIM_LINGER | SIM_CANCEL |     \
     SIM_CLOSE)

#define FINE                                                                   \
    {                                                                          \
        .delay_us = 2000, .no_thread = 20                                      \
    }
#define LOSSY                                                                  \
    {                                                                          \
        .delay_us = 3000, .slow = 50, .lost = 60, .late = 60, .twice = 60,     \
        .wake_lost = 100, .wake_late = 200, .wake_twice = 200, .cut = 30,      \
        .no_thread = 20, .drift_ppm = 10000                                    \
    }

const struct sim_family sim_families[] = {
    {.name = "queued, fine weather",
     .traits = LEASED | QUEUED | GROUPS,
     .habits = PLAIN | SIM_LINGER | SIM_OWNER | SIM_SHARED | SIM_MANUAL,
     .prompt = true,
     .weather = FINE},
    {.name = "notified without a queue, fine weather",
     .traits = LEASED | NOTIFY,
     .habits = PLAIN | SIM_LINGER | SIM_CANCEL,
     .prompt = true,
     .weather = FINE},
    {.name = "queued, lossy network",
     .traits = LEASED | QUEUED,
     .habits = ALL,
     .weather = LOSSY},
    {.name = "notified, lossy network",
     .traits = LEASED | NOTIFY,
     .habits = ALL,
     .weather = LOSSY},
    {.name = "polling, lossy network",
     .traits = LEASED,
     .habits = ALL,
     .weather = LOSSY},
    {.name = "queued, pauses and crashes",
     .traits = LEASED | QUEUED,
     .habits = ALL,
     .weather = {.delay_us = 5000,
                 .slow = 150,
                 .late = 20,
                 .pause = 300,
                 .crash = 60,
                 .drift_ppm = 10000}},
    {.name = "shared and reentrant, everything goes wrong",
     .traits = LEASED | QUEUED | GROUPS,
     .habits = ALL | SIM_SHARED,
     .weather = {.delay_us = 3000,
                 .lost = 30,
                 .late = 30,
                 .twice = 30,
                 .wake_lost = 50,
                 .wake_late = 100,
                 .wake_twice = 50,
                 .pause = 100,
                 .crash = 30,
                 .cut = 30,
                 .drift_ppm = 10000}},
    {.name = "not leased, pauses and crashes",
     .traits = HF_TRAIT_FENCED | HF_TRAIT_DEATH | QUEUED | GROUPS,
     .habits = ALL | SIM_SHARED,
     .weather = {.delay_us = 2000,
                 .wake_lost = 50,
                 .wake_late = 100,
                 .wake_twice = 50,
                 .pause = 200,
                 .crash = 60}},
    {.name = "broken locks, and a service that forgets",
     .traits = LEASED | NOTIFY | GROUPS | HFI_TRAIT_EARLY,
     .habits = ALL | SIM_SHARED,
     .weather = {.delay_us = 3000,
                 .lost = 20,
                 .late = 20,
                 .pause = 50,
                 .broken = 200,
                 .restart = 50,
                 .denied = 10,
                 .drift_ppm = 10000}},
    {.name = "detached and attached, lossy network",
     .traits = LEASED | QUEUED | HF_TRAIT_DETACH,
     .habits = PLAIN | SIM_LINGER | SIM_DETACH | SIM_CLOSE,
     .weather = LOSSY},
    {.name = "shared and downgraded, everything goes wrong",
     .traits = LEASED | QUEUED | GROUPS,
     .habits = ALL | SIM_SHARED | SIM_DOWNGRADE,
     .weather = {.delay_us = 3000,
                 .slow = 50,
                 .lost = 60,
                 .late = 60,
                 .twice = 30,
                 .wake_lost = 50,
                 .wake_late = 100,
                 .pause = 100,
                 .crash = 30,
                 .cut = 30,
                 .drift_ppm = 10000}},
    {.name = "permits, everything goes wrong",
     .traits = LEASED | QUEUED | HF_TRAIT_PERMITS,
     .habits = ALL | SIM_PERMITS,
     .weather = {.delay_us = 3000,
                 .slow = 50,
                 .lost = 60,
                 .late = 60,
                 .twice = 30,
                 .wake_lost = 50,
                 .wake_late = 100,
                 .wake_twice = 50,
                 .pause = 100,
                 .crash = 30,
                 .cut = 30,
                 .drift_ppm = 10000}},
    {.name = "several keys, fine weather",
     .traits = LEASED | QUEUED | GROUPS,
     .habits = PLAIN | SIM_LINGER | SIM_SHARED | SIM_SEVERAL,
     .prompt = true,
     .weather = FINE},
    {.name = "several keys, everything goes wrong",
     .traits = LEASED | NOTIFY | GROUPS,
     .habits = ALL | SIM_SHARED | SIM_SEVERAL,
     .weather = {.delay_us = 3000,
                 .slow = 50,
                 .lost = 60,
                 .late = 60,
                 .wake_lost = 100,
                 .wake_late = 100,
                 .pause = 100,
                 .crash = 30,
                 .cut = 30,
                 .broken = 100,
                 .drift_ppm = 10000}},
    /* No request arrives twice: on a session that is kept nothing lapses, and
     * no client could know what it would have to take back. */
    {.name = "sessions, late answers",
     .traits = BOUND | QUEUED,
     .habits = ALL,
     .weather = {.delay_us = 3000,
                 .slow = 200,
                 .late = 30,
                 .wake_late = 100,
                 .drift_ppm = 10000}},
    {.name = "sessions, partitions, pauses and crashes",
     .traits = BOUND | QUEUED,
     .habits = ALL,
     .weather = {.delay_us = 5000,
                 .slow = 100,
                 .lost = 30,
                 .late = 20,
                 .pause = 200,
                 .crash = 50,
                 .cut = 50,
                 .drift_ppm = 10000}},
    {.name = "sessions, detached and attached, lossy network",
     .traits = BOUND | QUEUED | HF_TRAIT_DETACH,
     .habits = PLAIN | SIM_LINGER | SIM_DETACH | SIM_BEARER | SIM_CLOSE,
     .weather = {.delay_us = 3000,
                 .slow = 50,
                 .lost = 60,
                 .late = 60,
                 .wake_lost = 100,
                 .wake_late = 200,
                 .wake_twice = 200,
                 .cut = 30,
                 .drift_ppm = 10000}},
};

const int sim_nfamilies = (int)(sizeof(sim_families) / sizeof(*sim_families));
