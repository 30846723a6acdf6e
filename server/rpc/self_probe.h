// Asks this server for its health over a new connection every few seconds. gRPC 1.51 accepts no
// connection any more once accept() has failed because descriptors ran out (the class of
// CVE-2023-4785). A process that cannot be reached should be restarted; workers keep running.
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
