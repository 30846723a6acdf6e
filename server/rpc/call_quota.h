// The memory that calls in progress take: their requests until they are answered, and their answers
// until they are read. A caller may make many calls and read nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"

namespace nsa::server {

// Thread-safe. Copies share what they count.
class CallQuota {
 public:
  struct Limits {
    const char* what;  // "request"
    const char* advice;
    int64_t of_one_caller = int64_t{64} << 20;
    int64_t of_all = int64_t{128} << 20;
  };
  explicit CallQuota(const Limits& limits) : limits_(limits) {}

  // Takes so much until the last copy of the result is gone, which may be after the quota.
  // ResourceExhausted beyond the limits.
  absl::StatusOr<std::shared_ptr<void>> Take(const std::string& caller, int64_t bytes) const;

 private:
  struct Held {
    Mutex mutex;
    int64_t all ABSL_GUARDED_BY(mutex) = 0;
    std::map<std::string, int64_t> of_caller ABSL_GUARDED_BY(mutex);
  };
  const Limits limits_;
  const std::shared_ptr<Held> held_ = std::make_shared<Held>();
};

// What one call takes of the quota of answers. One thread at a time.
class AnswerShare {
 public:
  // `least`: what the call takes whatever it answers, from the first Hold() on.
  AnswerShare(const CallQuota& quota, std::string caller, int64_t least)
      : quota_(quota), caller_(std::move(caller)), least_(least) {}

  // For an answer of so many bytes, twice: as a message and as what is sent. Lets go of the one
  // before; 0: it has been read. ResourceExhausted beyond the limits.
  absl::Status Hold(size_t bytes);

  // The share of the call that begins on this thread; null when it has none.
  static std::shared_ptr<AnswerShare> OfThisCall();
  // Makes it that for as long as it lives.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<AnswerShare> share);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

 private:
  const CallQuota quota_;
  const std::string caller_;
  const int64_t least_;
  std::shared_ptr<void> held_;
};

}  // namespace nsa::server
