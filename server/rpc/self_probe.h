// Calls this server's health service over a new connection every few seconds, over the unix socket,
// which strangers cannot reach, and whose gate always lets this process in: a flood, whatever it
// does, ends nothing. A process that cannot be reached, because its threads hang or somebody has
// removed the socket, should be restarted; workers keep running meanwhile.
//
// On a machine with far too much to do, a server that is well does not answer in time either. The
// probe tells the two apart by its own thread, which wants to run ten times a second meanwhile: if
// it hardly could, nothing is held against the server.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "nsa/v1/config.pb.h"

namespace nsa::server {

enum class Probed {
  kAnswered,
  kSilent,
  kStarved,  // no answer, but the probe itself did not get to run
};

struct Probing {
  bool answered = false;
  bool refused = false;  // an error came before the time was over
  absl::Duration took;
  int pulses = 0;  // how often the probe's thread ran meanwhile
};

// The time from a pulse to the next on a machine that has a processor for the probe.
inline constexpr absl::Duration kProbePulse = absl::Milliseconds(100);

// A probe without an answer is starved if it had less than half of its pulses.
Probed JudgeProbe(const Probing& probing);

class SelfProbe {
 public:
  struct Options {
    std::string address;  // plaintext
    absl::Duration every = absl::Seconds(5);
    absl::Duration patience = absl::Seconds(3);
    int failures = 3;                   // in a row, before `unreachable` is called
    std::function<void()> alive;        // after every answer, and after a starved probe
    std::function<void()> unreachable;  // once
  };
  explicit SelfProbe(Options options);
  ~SelfProbe();

 private:
  struct Question;

  void Loop();
  void Note(Probed probed);
  Probing Probe() const;

  const Options options_;
  int failures_ = 0;  // used by the thread only
  Mutex mutex_;
  CondVar woken_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nsa::server
