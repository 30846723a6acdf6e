// The service for users (nsactl), on gRPC's callback API. It only passes requests on and returns
// replies; job_control.h makes the decisions. Nothing that may block runs on gRPC's threads.
#pragma once

#include <functional>
#include <string>

#include "nsa/v1/coordinator.grpc.pb.h"
#include "server/act/dump_broker.h"
#include "server/act/job_control.h"
#include "server/act/node/node_control.h"
#include "server/act/profile/profile_broker.h"
#include "server/rpc/call.h"
#include "server/rpc/message_limit.h"
#include "server/rpc/stream.h"
#include "server/store/access_store.h"
#include "server/store/audit/audit_log.h"
#include "server/store/log_store.h"
#include "server/store/stack_store.h"
#include "server/watch/change_hub.h"

namespace nsa::server {

class CoordinatorService final : public v1::CoordinatorService::CallbackService {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    AccessStore& access;
    AuditLog& audit;
    JobControl& control;
    Fleet& fleet;
    const NodeStore& nodes;
    NodeControl& node_control;
    LogStore& logs;
    StackStore& stacks;
    DumpBroker& dumps;
    ProfileBroker& profiles;
    ChangeHub& hub;
    const CallRules& rules;
    // `files` runs calls that read a user's files. They may take seconds, or never return if a
    // network file system hangs. `slow` runs calls that take minutes. Both are separate from the
    // executor of all other calls, and their queues are bounded.
    Executor& files;
    Executor& slow;
    std::function<void()> submitted;  // wakes the reconciler
    std::function<v1::GetVersionResponse()> version;
    bool local_agent = false;  // the coordinator keeps an agent running on its own machine
  };
  explicit CoordinatorService(Parts parts);

 private:
  const Parts parts_;
  RequestGate gate_;
};

}  // namespace nsa::server
