// Asks this very server for its health over a new connection every few seconds. gRPC 1.51 goes deaf
// for good once accept() has failed for want of descriptors (the class of CVE-2023-4785); a process
// that cannot be reached any more is better restarted, and the workers do not notice.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "nsa/v1/config.pb.h"

namespace nsa::server {

class SelfProbe {
 public:
  struct Options {
    std::string address;  // plaintext
    absl::Duration every = absl::Seconds(5);
    absl::Duration patience = absl::Seconds(3);
    int failures = 3;             // in a row, before `deaf` is called
    std::function<void()> alive;  // after every answer
    std::function<void()> deaf;   // once
  };
  explicit SelfProbe(Options options);
  ~SelfProbe();

 private:
  void Loop();
  bool Answers() const;

  const Options options_;
  Mutex mutex_;
  CondVar woken_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nsa::server
