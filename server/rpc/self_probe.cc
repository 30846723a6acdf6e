#include "server/rpc/self_probe.h"

#include <utility>

#include "common/base/thread_name.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "spdlog/spdlog.h"

namespace nsa::server {

SelfProbe::SelfProbe(Options options) : options_(std::move(options)), thread_([this] { Loop(); }) {}

SelfProbe::~SelfProbe() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    woken_.SignalAll();
  }
  thread_.join();
}

void SelfProbe::Loop() {
  NameThread("self-probe");
  int failures = 0;
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) woken_.WaitFor(&mutex_, options_.every);
      if (stopping_) return;
    }
    if (Answers()) {
      failures = 0;
      options_.alive();
      continue;
    }
    spdlog::warn("self probe: no answer from {} within {} s ({} in a row)", options_.address,
                 absl::ToDoubleSeconds(options_.patience), failures + 1);
    if (++failures == options_.failures) options_.unreachable();
  }
}

bool SelfProbe::Answers() const {
  grpc::ChannelArguments arguments;
  // A new connection each time: an existing one keeps working after accept() has failed.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoNanoseconds(options_.patience));
  // Health.Check with an empty request. Any OK reply shows that the server can be reached; its
  // content is not read.
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  grpc::Slice nothing;
  request = grpc::ByteBuffer(&nothing, 1);
  return grpc::internal::BlockingUnaryCall(channel.get(), method, &context, request, &response)
      .ok();
}

}  // namespace nsa::server
