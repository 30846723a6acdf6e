// Passes stack dumps from agents to callers. The reply to a heartbeat carries the request, and
// ReportDump the result. A caller waits for a bounded time and gets the dumps that have arrived,
// with an error for each rank that did not answer.
//
// A dump stops the rank for a moment and costs its machine a process. Callers that ask for a rank
// whose dump is on its way wait for that one: a rank has at most one dump at a time, however many
// ask.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// Thread-safe. `Done` is called exactly once, without a lock, from Report() or Expire().
class DumpBroker {
 public:
  using Done = std::function<void(std::vector<v1::StackDump>)>;

  // How many callers of TryRequest() may wait at the same time.
  static constexpr size_t kMostWaiting = 64;

  explicit DumpBroker(const Clock& clock) : clock_(clock) {}

  // Asks for dumps of these ranks of the job's current generation. Waits at most `patience`. For
  // the coordinator itself.
  void Request(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
               absl::Duration patience, Done done);

  // The same for callers. ResourceExhausted, and `done` is not called, when kMostWaiting wait.
  absl::Status TryRequest(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
                          absl::Duration patience, Done done);

  // The dumps that a machine should take now. A request is repeated until its result is reported;
  // agents take each dump id once.
  std::vector<v1::DumpRequest> Wanted(const std::string& node) const;

  // Takes the result of a dump. NotFound when nobody waits for it.
  absl::Status Report(const v1::ReportDumpRequest& report);

  // Answers the callers whose deadline has passed. Called regularly.
  void Expire();

 private:
  using Key = std::tuple<std::string, int64_t, int32_t>;  // job, generation, rank
  // The dump of one rank, which at least one caller waits for.
  struct Wish {
    v1::DumpRequest request;
    std::string node;
    int waiting = 0;  // callers
  };
  // One caller, with what it has got of each rank.
  struct Caller {
    struct Part {
      Key key;
      bool answered = false;
      v1::StackDump dump;
    };
    absl::Duration deadline;  // monotonic
    absl::Duration patience;
    bool counted = false;  // among kMostWaiting
    std::vector<Part> parts;
    Done done;
  };
  using Callers = std::list<Caller>;

  void Add(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks, Caller caller)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a caller out, with those of its wishes that nobody else waits for.
  void Remove(Callers::iterator caller, Callers* to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Answer(Callers callers);

  const Clock& clock_;
  mutable Mutex mutex_;
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t counted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, Wish> wishes_ ABSL_GUARDED_BY(mutex_);
  Callers callers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
