// Any bytes as the request of any call, from any caller: through the limit on elements, as the
// service unpacks them, to the work behind the call. Whatever is answered, the job of somebody else
// stays as it is.
#include <utility>

#include "common/run/unpacked_bytes.h"
#include "server/act/checkpoints.h"
#include "server/act/edit/edit_job.h"
#include "server/rpc/heartbeat_limits.h"
#include "server/rpc/tokens.h"
#include "server/watch/nodes_view.h"
#include "server/watch/veil.h"
#include "tests/fuzz/world.h"

namespace nsa::fuzz {
namespace {

using server::Asker;
using server::Caller;

// A request that was answered with OK may have changed the world, which is then made again.
std::unique_ptr<World> world;

struct Call {
  const char* method;
  bool changes;
  // Unpacks the request and does the work. Invalid bytes are InvalidArgument.
  std::function<absl::Status(std::string_view bytes, const Caller& caller)> run;
};

Asker AskerOf(const Caller& caller) {
  return {.name = caller.name, .own_jobs_only = caller.role == v1::ROLE_SUBMITTER};
}

// A call whose work is work(request, caller), which returns a StatusOr<reply>.
template <typename Request, typename Work>
Call MakeCall(const char* method, bool changes, Work work) {
  return {method, changes, [work](std::string_view bytes, const Caller& caller) -> absl::Status {
            Request request;
            if (!UnpackedBytes(*Request::descriptor(), bytes).has_value() ||
                !request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
              return absl::InvalidArgumentError("no request");
            }
            const auto reply = work(request, caller);
            if (!reply.ok()) return reply.status();
            Require(reply->ByteSizeLong() < 4 << 20, "a reply that gRPC would refuse");
            return absl::OkStatus();
          }};
}

std::vector<Call> PeoplesCalls() {
  const auto control = []() -> server::JobControl& { return *world->life().control; };
  return {
      MakeCall<v1::SubmitJobRequest>("SubmitJob", true,
                                     [=](const auto& request, const Caller& caller) {
                                       return control().Submit(request, nullptr, AskerOf(caller));
                                     }),
      MakeCall<v1::GetJobRequest>("GetJob", false,
                                  [=](const auto& request, const Caller& caller) {
                                    return control().Get(request.job(), AskerOf(caller));
                                  }),
      MakeCall<v1::ListJobsRequest>("ListJobs", false,
                                    [=](const auto& request, const Caller& caller) {
                                      return control().List(request, AskerOf(caller));
                                    }),
      MakeCall<v1::StopJobRequest>("StopJob", true,
                                   [=](const auto& request, const Caller& caller) {
                                     return control().Stop(request, AskerOf(caller));
                                   }),
      MakeCall<v1::ResumeJobRequest>("ResumeJob", true,
                                     [=](const auto& request, const Caller& caller) {
                                       return control().Resume(request, AskerOf(caller));
                                     }),
      MakeCall<v1::DeleteJobRequest>("DeleteJob", true,
                                     [=](const auto& request, const Caller& caller) {
                                       return control().Delete(request, "fuzz", AskerOf(caller));
                                     }),
      MakeCall<v1::EditJobRequest>(
          "EditJob", true,
          [=](const auto& request, const Caller& caller) -> absl::StatusOr<v1::Job> {
            NSA_ASSIGN_OR_RETURN(const server::JobPtr job,
                                 server::EditJob(*world->life().store, request, caller.name,
                                                 AskerOf(caller).only()));
            return control().View(*job);
          }),
      MakeCall<v1::ListCheckpointsRequest>(
          "ListCheckpoints", false,
          [=](const auto& request,
              const Caller& caller) -> absl::StatusOr<v1::ListCheckpointsResponse> {
            NSA_ASSIGN_OR_RETURN(const server::JobFolder folder,
                                 control().OutDir(request.job(), AskerOf(caller)));
            const JobFileScope files(folder.files);
            return server::CheckpointsOf(folder.out_dir, request);
          }),
      MakeCall<v1::ListNodesRequest>(
          "ListNodes", false,
          [](const auto& request, const Caller& caller) -> absl::StatusOr<v1::ListNodesResponse> {
            server::Life& life = world->life();
            NSA_ASSIGN_OR_RETURN(v1::ListNodesResponse nodes,
                                 server::NodesView(life.fleet.Nodes(), life.store->Active(),
                                                   life.nodes->All(), request));
            server::KeepOwnJobs(*life.store, AskerOf(caller).only(), &nodes);
            return nodes;
          }),
      MakeCall<v1::ListUseRequest>(
          "ListUse", false,
          [](const auto& /*request*/, const Caller& caller) -> absl::StatusOr<v1::ListUseResponse> {
            return world->life().control->Use(AskerOf(caller));
          }),
  };
}

std::vector<Call> OperatorsCalls() {
  const auto access = []() -> server::AccessStore& { return *world->life().access; };
  return {
      MakeCall<v1::CreateTokenRequest>("CreateToken", true,
                                       [=](const auto& request, const Caller&) {
                                         return server::CreateToken(access(), request);
                                       }),
      MakeCall<v1::ListTokensRequest>("ListTokens", false,
                                      [=](const auto& request, const Caller&) {
                                        return server::ListTokens(access(), request);
                                      }),
      MakeCall<v1::RotateTokenRequest>("RotateToken", true,
                                       [=](const auto& request, const Caller&) {
                                         return server::RotateToken(access(), request);
                                       }),
      MakeCall<v1::RevokeTokenRequest>("RevokeToken", true,
                                       [=](const auto& request, const Caller&) {
                                         return server::RevokeToken(access(), request);
                                       }),
      MakeCall<v1::ListAuditRequest>("ListAudit", false,
                                     [](const auto& request, const Caller&) {
                                       return server::ListAudit(world->audit(), request);
                                     }),
      MakeCall<v1::CordonNodeRequest>("CordonNode", true,
                                      [](const auto& request, const Caller& caller) {
                                        server::Life& life = world->life();
                                        return life.node_control->Cordon(request, caller.name);
                                      }),
      MakeCall<v1::UncordonNodeRequest>("UncordonNode", true,
                                        [](const auto& request, const Caller&) {
                                          return world->life().node_control->Uncordon(request);
                                        }),
  };
}

std::vector<Call> AgentsCalls() {
  const auto service = []() -> server::FleetService& { return *world->life().service; };
  return {
      MakeCall<v1::JoinRequest>("Join", true,
                                [=](const auto& request, const Caller& caller) {
                                  return service().Admit(request, caller);
                                }),
      MakeCall<v1::HeartbeatRequest>("Heartbeat", true,
                                     [=](const auto& request, const Caller& caller) {
                                       auto reply = service().Answer(request, caller);
                                       world->Look();
                                       return reply;
                                     }),
      MakeCall<v1::ReportRecordsRequest>("ReportRecords", true,
                                         [=](const auto& request, const Caller& caller) {
                                           return service().Take(request, caller);
                                         }),
      MakeCall<v1::ReportLogRequest>("ReportLog", true,
                                     [=](const auto& request, const Caller& caller) {
                                       return service().TakeLog(request, caller);
                                     }),
      MakeCall<v1::ReportDumpRequest>(
          "ReportDump", false,
          [](const auto& request, const Caller&) -> absl::StatusOr<v1::ReportDumpResponse> {
            NSA_RETURN_IF_ERROR(world->life().dumps.Report(request));
            return v1::ReportDumpResponse();
          }),
  };
}

const std::vector<Call>& Calls() {
  static const auto* const calls = [] {
    auto* all = new std::vector<Call>;
    for (const auto& some : {PeoplesCalls(), OperatorsCalls(), AgentsCalls()}) {
      all->insert(all->end(), some.begin(), some.end());
    }
    return all;
  }();
  return *calls;
}

Caller CallerOf(uint8_t kind) {
  switch (kind % 5) {
    case 0:
      return server::LocalCaller();
    case 1:
      return {.name = "mallory", .role = v1::ROLE_SUBMITTER};
    case 2:
      return {.name = "eve", .role = v1::ROLE_VIEWER};
    case 3:
      return server::AgentCaller("a");
    default:
      return server::AgentCaller("b");
  }
}

// The sender of these bytes is nobody: the store has no token.
void RequireUnknown(Input* input) {
  const server::Auth auth = server::Auth::WithoutFile(world->life().access.get());
  const std::string peer = "ipv4:" + std::string(input->Text());
  const auto caller = auth.Check({.peer = peer,
                                  .header = std::string(input->Text()),
                                  .certificate_name = std::string(input->Text())},
                                 input->Rest());
  RequireRefusal(caller.status());
  Require(!caller.ok() || caller->name.empty(), "a stranger is let in");
  server::ToWire(caller.status());
}

void RequireBase(const Caller& caller) {
  const auto base = world->life().control->Get("base");
  Require(base.ok(), base.status().ToString());
  if (caller.role == v1::ROLE_OPERATOR || caller.node == "a") return;
  Require(base->state() == v1::Job::STATE_RUNNING && !base->has_stop(),
          "somebody else's job was changed");
}

}  // namespace
}  // namespace nsa::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa::fuzz;
  if (world == nullptr) world = std::make_unique<World>();
  Input input(data, size);
  const uint8_t which = input.Byte();
  const Caller caller = CallerOf(input.Byte());
  if (which % (Calls().size() + 1) == Calls().size()) {
    RequireUnknown(&input);
    return 0;
  }
  const Call& call = Calls()[which % Calls().size()];
  absl::Status status = nsa::server::MayCall(caller, call.method);
  const bool called = status.ok();
  if (called) status = call.run(input.Rest(), caller);
  RequireRefusal(status);
  nsa::server::ToWire(status);
  const bool gone = called && status.ok() && std::string_view(call.method) == "DeleteJob";
  if (called && !gone) RequireBase(caller);
  if (called && status.ok() && call.changes) world = nullptr;
  return 0;
}
