#include "common/rpc/service_config.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.pb.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"

namespace nsa {

using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::MethodOptions;
using google::protobuf::ServiceDescriptor;

std::vector<const MethodDescriptor*> RetriedMethods(
    const std::vector<const FileDescriptor*>& files) {
  std::vector<const MethodDescriptor*> retried;
  for (const FileDescriptor* file : files) {
    for (int s = 0; s < file->service_count(); ++s) {
      const ServiceDescriptor& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        const MethodDescriptor* method = service.method(m);
        if (method->options().idempotency_level() == MethodOptions::IDEMPOTENCY_UNKNOWN) continue;
        retried.push_back(method);
      }
    }
  }
  return retried;
}

std::string ServiceConfig() {
  const auto methods = RetriedMethods(
      {v1::SubmitJobRequest::descriptor()->file(), v1::HeartbeatRequest::descriptor()->file()});
  const std::string names =
      absl::StrJoin(methods, ", ", [](std::string* out, const MethodDescriptor* method) {
        absl::StrAppend(out, R"({"service": ")", method->service()->full_name(),
                        R"(", "method": ")", method->name(), R"("})");
      });
  return absl::StrCat(R"({"methodConfig": [{"name": [)", names, R"(],
   "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
                   "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}],
  "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.2}})");
}

}  // namespace nsa
