// Calls with bytes, as a client without the schema makes them.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"

namespace nsa::server {

struct RawAnswer {
  grpc::Status status;
  std::string bytes;  // of all messages, one after the other
};

// Sends one message to a method ("/nsa.v1.FleetService/Join") and takes all that is answered, also
// of a stream.
inline RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                         const std::string& request, const std::string& token) {
  grpc::GenericStub stub(channel);
  const auto context = MakeContext(absl::Seconds(20), token);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(context.get(), path, &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  done();
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  done();
  RawAnswer answer;
  grpc::ByteBuffer message;
  for (call->Read(&message, nullptr); done(); call->Read(&message, nullptr)) {
    grpc::Slice joined;
    EXPECT_TRUE(message.DumpToSingleSlice(&joined).ok());
    answer.bytes.append(reinterpret_cast<const char*>(joined.begin()), joined.size());
  }
  call->Finish(&answer.status, nullptr);
  done();
  return answer;
}

}  // namespace nsa::server
