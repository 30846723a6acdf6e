#include "common/rpc/health.h"

#include "grpcpp/impl/codegen/client_unary_call.h"

namespace nsa {

grpc::Status AskHealth(grpc::ChannelInterface* channel, grpc::ClientContext* context) {
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  return grpc::internal::BlockingUnaryCall(channel, method, context, request, &response);
}

}  // namespace nsa
