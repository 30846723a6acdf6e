// A limit on what a request unpacks to, checked before it is unpacked and before its caller is
// known. Two bytes on the wire can be an empty element, which takes some two hundred in memory: a
// request of 4 MiB would take 400 MiB.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/rpc_service_method.h"

namespace nsa::server {

// True if `bytes`, a message of this type, has at most 10,000 elements and one for each 8 bytes.
// An element is what takes memory of its own: a text, a message, a field that is not known. True,
// too, for bytes that are no message: they are refused when they are unpacked.
bool Fits(const google::protobuf::Descriptor& type, std::string_view bytes);

// The same for a request that has arrived. A small one fits without being looked at.
bool Fits(const google::protobuf::Descriptor& type, grpc_byte_buffer* request);

// The answer to a request that does not fit.
grpc::Status TooManyElements();

// The place of a method in its service, by its full name "nsa.v1.FleetService.Heartbeat".
int MethodIndex(const std::string& name);

// The handler of one method: gRPC's own, behind the limit. It has the interface of the handlers
// that generated code makes; a service gives it to MarkMethodCallback().
template <typename Request, typename Response>
class LimitedHandler final : public grpc::internal::MethodHandler {
 public:
  using Call = std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*, const Request*,
                                                       Response*)>;

  explicit LimitedHandler(Call call)
      : inner_([call = std::move(call)](grpc::CallbackServerContext* context,
                                        const Request* request, Response* response) {
          if (!static_cast<Messages*>(context->GetRpcAllocatorState())->refused) {
            return call(context, request, response);
          }
          grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
          reactor->Finish(TooManyElements());
          return reactor;
        }) {
    inner_.SetMessageAllocator(&allocator_);
  }

  void RunHandler(const HandlerParameter& parameter) override { inner_.RunHandler(parameter); }

  // Takes ownership of `request`. One that does not fit is replaced by an empty one.
  void* Deserialize(grpc_call* call, grpc_byte_buffer* request, grpc::Status* status,
                    void** handler_data) override {
    const bool fits = request == nullptr || Fits(*Request::descriptor(), request);
    if (!fits) {
      grpc_byte_buffer_destroy(request);
      request = grpc_raw_byte_buffer_create(nullptr, 0);
    }
    void* const unpacked = inner_.Deserialize(call, request, status, handler_data);
    static_cast<Messages*>(static_cast<grpc::MessageHolder<Request, Response>*>(*handler_data))
        ->refused = !fits;
    return unpacked;
  }

 private:
  struct Messages final : grpc::MessageHolder<Request, Response> {
    Messages() {
      this->set_request(&request_message);
      this->set_response(&response_message);
    }
    void Release() override { delete this; }

    Request request_message;
    Response response_message;
    bool refused = false;
  };

  struct Allocator final : grpc::MessageAllocator<Request, Response> {
    grpc::MessageHolder<Request, Response>* AllocateMessages() override { return new Messages; }
  };

  Allocator allocator_;
  grpc::internal::CallbackUnaryHandler<Request, Response> inner_;
};

// A handler that calls `method` of `service`.
template <typename Service, typename Request, typename Response>
std::unique_ptr<grpc::internal::MethodHandler> Limited(
    Service* service, grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*,
                                                                   const Request*, Response*)) {
  return std::make_unique<LimitedHandler<Request, Response>>(
      [service, method](grpc::CallbackServerContext* context, const Request* request,
                        Response* response) {
        return (service->*method)(context, request, response);
      });
}

}  // namespace nsa::server
