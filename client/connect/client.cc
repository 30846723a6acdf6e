#include "client/connect/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/grpc_failure.h"
#include "client/connect/interrupt.h"
#include "client/show/clean_message.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/rpc/rpc.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/client_unary_call.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/sync_stream.h"

namespace nsa::client {
namespace {

using google::protobuf::MessageLite;

// The least time for an attempt to connect.
constexpr absl::Duration kAttempt = absl::Seconds(20);

// An attempt lasts longer than a call with the deadline `timeout`: a coordinator that accepts the
// connection and is silent is reported as not answering in that time, not as unreachable.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const Endpoint& endpoint,
                                                       std::optional<absl::Duration> timeout) {
  // gRPC counts milliseconds in an int.
  const absl::Duration longest = std::min(timeout.value_or(kCallTimeout), absl::Hours(24));
  return OpenChannel(endpoint.address, endpoint.tls, std::max(kAttempt, 2 * longest));
}

// True when gRPC itself made the status because no server took the call. An Unavailable that the
// coordinator answered has details, which ToGrpc() adds to every error.
bool ReachedNobody(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE && DetailsOf(status).reason.empty();
}

bool UsesTls(const Endpoint& endpoint) { return endpoint.tls.ByteSizeLong() > 0; }

// "/nsa.v1.CoordinatorService/GetJob": the method whose request and response have these types.
absl::StatusOr<std::string> MethodOf(const google::protobuf::Message& request,
                                     const google::protobuf::Message& response) {
  const google::protobuf::ServiceDescriptor& service =
      *v1::SubmitJobRequest::descriptor()->file()->FindServiceByName("CoordinatorService");
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *service.method(i);
    if (method.input_type() != request.GetDescriptor()) continue;
    if (method.output_type() != response.GetDescriptor()) break;
    return absl::StrCat("/", service.full_name(), "/", method.name());
  }
  return absl::InternalError(absl::StrCat("client: no method of ", service.full_name(), " takes ",
                                          request.GetTypeName(), " and returns ",
                                          response.GetTypeName()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const Endpoint& endpoint,
                                                     std::optional<absl::Duration> timeout,
                                                     Interrupt* interrupt) {
  NSA_ASSIGN_OR_RETURN(auto channel, Connect(endpoint, timeout));
  return std::unique_ptr<Client>(new Client(endpoint, timeout, interrupt, std::move(channel)));
}

Client::Client(Endpoint endpoint, std::optional<absl::Duration> timeout, Interrupt* interrupt,
               std::shared_ptr<grpc::Channel> channel)
    : endpoint_(std::move(endpoint)),
      timeout_(timeout),
      interrupt_(interrupt),
      channel_(std::move(channel)) {}

Client::~Client() = default;

void Client::RenewIfLost(const grpc::Status& status) {
  if (!ReachedNobody(status)) return;
  auto fresh = Connect(endpoint_, timeout_);
  if (!fresh.ok()) return;  // The certificates were good a moment ago: the next call tries again.
  const MutexLock lock(&mutex_);
  channel_ = *std::move(fresh);
}

std::shared_ptr<grpc::Channel> Client::channel() const {
  const MutexLock lock(&mutex_);
  return channel_;
}

std::string Client::warning() const {
  const MutexLock lock(&mutex_);
  return warning_;
}

absl::Status Client::Explain(const grpc::Status& status, absl::Duration timeout) const {
  if (interrupt_->raised()) return absl::CancelledError("interrupted");
  if (ReachedNobody(status)) {
    const bool unix_socket = absl::StartsWith(endpoint_.address, "unix:");
    const bool here = endpoint_.source == "default";
    const std::string tls = UsesTls(endpoint_) ? WhyTlsFailed(status.error_message()) : "";
    if (!tls.empty()) {
      return absl::UnauthenticatedError(
          absl::StrCat("coordinator: ", endpoint_.address, ": ", tls));
    }
    return absl::UnavailableError(absl::StrCat(
        "coordinator: ", endpoint_.address, " cannot be reached (",
        WhyUnreachable(status.error_message()), "); ",
        here ? "start one with `nsa-coordinator`, or name another with --address or `nsactl "
               "context use NAME`"
             : absl::StrCat("the address is from ", endpoint_.source,
                            "; check it, or start a coordinator there with `nsa-coordinator`"),
        ClosedConnectionHint(status.error_message(), unix_socket, UsesTls(endpoint_))));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrCat(
        "coordinator: ", endpoint_.address, " did not answer in ",
        timeout < absl::Seconds(1) ? absl::StrCat(absl::ToInt64Milliseconds(timeout), " ms")
                                   : HumanDuration(absl::ToDoubleSeconds(timeout)),
        " (--timeout); try a longer --timeout"));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(absl::StrCat(
        "coordinator: ", endpoint_.address, " does not know this request (nsactl is ", kVersion,
        "; `nsactl version` shows both); upgrade the coordinator (nsa-coordinator) to that "
        "version, or use an nsactl of the coordinator's"));
  }
  if (status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(
        absl::StrCat("coordinator: ", endpoint_.address, " ended the call; try again"));
  }
  return FromGrpc(status);
}

absl::Status Client::CallInto(const Message& request, Message* response,
                              const CallOptions& options) {
  NSA_ASSIGN_OR_RETURN(const std::string name, MethodOf(request, *response));
  const absl::Duration timeout = timeout_.value_or(options.timeout);
  const auto context = MakeContext(timeout, endpoint_.token);
  const Interrupt::Scope scope(interrupt_, [&] { context->TryCancel(); });
  const CallWatch::Guard guard(&watch_, context.get(), timeout);
  // The same call that a generated stub makes.
  const grpc::internal::RpcMethod method(name.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  const auto channel = this->channel();
  grpc::Status status = grpc::internal::BlockingUnaryCall<MessageLite, MessageLite>(
      channel.get(), method, context.get(), request, response);
  if (!status.ok() && guard.overran())
    status = grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "");
  {
    const MutexLock lock(&mutex_);
    warning_ = WarningOf(*context);
  }
  if (status.ok() && clean_ && !options.raw) CleanTexts(response);
  if (status.ok()) return absl::OkStatus();
  RenewIfLost(status);
  if (options.details != nullptr) *options.details = DetailsOf(status);
  return Explain(status, timeout);
}

absl::Status Client::StreamInto(const Message& request, Message* response,
                                const std::function<bool()>& on_message) {
  NSA_ASSIGN_OR_RETURN(const std::string name, MethodOf(request, *response));
  const auto context = MakeContext(absl::InfiniteDuration(), endpoint_.token);
  const Interrupt::Scope scope(interrupt_, [&] { context->TryCancel(); });
  const grpc::internal::RpcMethod method(name.c_str(), grpc::internal::RpcMethod::SERVER_STREAMING);
  const auto channel = this->channel();
  const std::unique_ptr<grpc::ClientReader<MessageLite>> reader(
      grpc::internal::ClientReaderFactory<MessageLite>::Create<MessageLite>(
          channel.get(), method, context.get(), request));
  while (reader->Read(response)) {
    if (clean_) CleanTexts(response);
    if (on_message()) continue;
    context->TryCancel();
    while (reader->Read(response)) {
    }
    reader->Finish();
    return absl::OkStatus();
  }
  const grpc::Status status = reader->Finish();
  RenewIfLost(status);
  return status.ok() ? absl::OkStatus() : Explain(status, absl::InfiniteDuration());
}

absl::Status WithViolations(const absl::Status& status, const ErrorDetails& details) {
  std::string text;
  for (const FieldViolation& violation : details.violations) {
    if (violation.description == status.message()) continue;
    absl::StrAppend(&text, violation.field, ": ", violation.description, "\n");
  }
  if (text.empty()) return status;
  // The coordinator's message is about the first of them.
  const bool preflight = details.reason == Word(Reason::kPreflightRefused);
  return WithMessage(
      status, absl::StrCat(text, preflight ? "preflight: the job is refused (errors above); change "
                                             "what they name"
                                           : status.message()));
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& job, v1::JobUse use,
                                       const CallOptions& options) {
  v1::GetJobRequest request;
  request.set_job(job);
  request.set_use(use);
  NSA_ASSIGN_OR_RETURN(v1::GetJobResponse response, Call<v1::GetJobResponse>(request, options));
  if (use == v1::JOB_USE_UNSPECIFIED && response.namesakes() > 0 && note_) {
    note_(absl::StrFormat(
        "%s: job %s, the newest%s; %s the name too, `nsactl list` shows the ids", job,
        response.job().id(), HasEnded(response.job()) ? "" : " that has not ended",
        response.namesakes() == 1 ? "another job has"
                                  : absl::StrCat(response.namesakes(), " other jobs have")));
  }
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::ListCheckpointsResponse> Client::ListCheckpoints(const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  v1::ListCheckpointsResponse all;
  do {
    NSA_ASSIGN_OR_RETURN(v1::ListCheckpointsResponse page,
                         Call<v1::ListCheckpointsResponse>(request));
    request.set_page_token(page.next_page_token());
    page.clear_next_page_token();
    all.MergeFrom(page);
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<v1::ListNodesResponse> Client::ListNodes() {
  v1::ListNodesRequest request;
  v1::ListNodesResponse all;
  do {
    NSA_ASSIGN_OR_RETURN(v1::ListNodesResponse page, Call<v1::ListNodesResponse>(request));
    request.set_page_token(page.next_page_token());
    page.clear_next_page_token();
    all.MergeFrom(page);
  } while (!request.page_token().empty());
  return all;
}

}  // namespace nsa::client
