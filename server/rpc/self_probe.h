// Calls this server's health service over a new connection every few seconds. Once accept() has
// failed because the process ran out of file descriptors, gRPC 1.51 accepts no further connection
// (the class of CVE-2023-4785). A process that cannot be reached should be restarted; workers keep
// running meanwhile.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "nsa/v1/config.pb.h"

namespace nsa::server {

class SelfProbe {
 public:
  struct Options {
    std::string address;  // plaintext
    absl::Duration every = absl::Seconds(5);
    absl::Duration patience = absl::Seconds(3);
    int failures = 3;                   // in a row, before `unreachable` is called
    std::function<void()> alive;        // after every answer
    std::function<void()> unreachable;  // once
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
