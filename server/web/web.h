// The live page: its files, the JSON that it reads, the stream that keeps it current, and the few
// requests that change something. server/README.md lists the paths.
//
// Anyone may read over the HTTP port, except traces. A trace and a change need an operator's
// token in the header Authorization (never a cookie) and must not come from a page of another site.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/act/dump_broker.h"
#include "server/act/executor.h"
#include "server/act/job_control.h"
#include "server/act/profile/profile_broker.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/store/log_store.h"
#include "server/store/stack_store.h"
#include "server/watch/change_hub.h"
#include "server/watch/http.h"
#include "server/watch/queue_board.h"

namespace nsa::server {

class PlaceCache;
class SparkCache;
class TraceShelf;
class ViewCache;

// Thread-safe.
class Web {
 public:
  // All are borrowed.
  struct Parts {
    JobStore& store;
    JobControl& control;
    const Fleet& fleet;
    const NodeStore& nodes;
    const QueueBoard& board;
    LogStore& logs;
    StackStore& stacks;
    DumpBroker& dumps;
    ProfileBroker& profiles;
    ChangeHub& hub;
    Executor& files;  // for calls that read users' files
    const Clock& clock;
    const std::atomic<bool>& draining;
    // The name of the operator whose token the header Authorization of a request has.
    std::function<absl::StatusOr<std::string>(std::string_view authorization)> check_operator;
    std::function<void(const v1::AuditEntry& entry)> audit;  // notes a change
    std::function<void()> changed;                           // a job was stopped or resumed
    std::function<v1::GetVersionResponse()> version;
    std::function<std::string()> warning;  // CallRules::warning
    std::string token_file;
    std::string trace_folder;   // for files without names
    std::string page_url = {};  // where else the page is, e.g. behind a proxy; may be empty
    std::shared_ptr<PlaceCache> places = {};  // these two are made by Web
    std::shared_ptr<ViewCache> views = {};
  };
  explicit Web(Parts parts);
  ~Web();

  HttpReply Answer(const HttpRequest& request);

  // A job was deleted.
  void Forget(const std::string& job_id);

 private:
  HttpReply File(const HttpRequest& request) const;
  HttpReply Api(const HttpRequest& request);
  // Changes a job for an operator. Noted in the audit log, whatever its result is.
  HttpReply Change(const HttpRequest& request, const std::string& job, const std::string& verb);
  HttpReply Trace(const HttpRequest& request, const std::string& job, const std::string& id);

  const Parts parts_;
  const std::unique_ptr<SparkCache> sparks_;
  const std::unique_ptr<TraceShelf> traces_;
  // Streams that are open; each occupies a thread of the HTTP server.
  const std::shared_ptr<std::atomic<int>> streams_;
};

}  // namespace nsa::server
