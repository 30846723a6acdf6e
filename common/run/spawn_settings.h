// What posix_spawn() is given, which starts children because fork() is not safe with gRPC's
// threads. Private to this folder.
#pragma once

#include <signal.h>
#include <spawn.h>

#include <cstdint>

namespace nsa {

// Owns both. The child has the defaults of all signals and blocks none; `flags` are others of
// posix_spawnattr_setflags().
struct SpawnSettings {
  explicit SpawnSettings(int flags) {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigset_t none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(
        &attributes, static_cast<int16_t>(flags | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

}  // namespace nsa
