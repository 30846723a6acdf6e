#include "client/client.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/version.h"

namespace nsa {
namespace {

// Stacks of a job with many ranks, and hashing of a checkpoint of many GiB, take longer than an
// ordinary answer may.
constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr absl::Duration kDumpTimeout = absl::Seconds(60);
constexpr absl::Duration kVerifyTimeout = absl::Minutes(30);

// gRPC's own text of a connection that failed, without its list of sub-errors.
std::string WhyUnreachable(const std::string& message) {
  if (absl::StrContains(message, "No such file or directory")) return "no such socket";
  if (absl::StrContains(message, "Connection refused")) return "connection refused";
  if (absl::StrContains(message, "DNS resolution failed")) return "unknown host";
  if (absl::StrContains(message, "Failed parsing HTTP/2")) {
    return "something answers there, but no gRPC: is it another program's port, or /metrics?";
  }
  if (absl::StrContains(message, "Socket closed")) return "connection closed";
  return message.substr(0, 200);
}

bool UsesTls(const Endpoint& endpoint) { return endpoint.tls.ByteSizeLong() > 0; }

// What is wrong when TLS certainly is: gRPC's texts of a handshake that failed on our side. Empty
// otherwise.
std::string WhyTlsFailed(const std::string& message) {
  if (absl::StrContains(message, "is not in peer certificate")) {
    return "this name is not in the coordinator's certificate; use a name or address that is "
           "(subjectAltName), or make a certificate with this one";
  }
  if (absl::StrContains(message, "Ssl handshake failed") ||
      absl::StrContains(message, "SSL_ERROR")) {
    return "TLS handshake failed; is the coordinator's certificate signed by the authority in "
           "--ca-file, and does that port speak TLS?";
  }
  // No channel could be made of what the files hold.
  if (absl::StartsWith(message, "empty address list")) {
    return "the TLS files cannot be used; is --private-key-file the key of --certificate-file, and "
           "are all of them PEM?";
  }
  return "";
}

// A server that refuses our certificate, or wants TLS, closes the connection and says nothing.
std::string WhatElseAClosedConnectionIs(const Endpoint& endpoint, const std::string& message) {
  const bool closed =
      absl::StrContains(message, "Socket closed") || absl::StrContains(message, "Connection reset");
  if (!closed || absl::StartsWith(endpoint.address, "unix:")) return "";
  return UsesTls(endpoint)
             ? "; it closes on a client whose certificate is missing or not signed by its "
               "tls.client_ca_file: 'nsactl context set NAME --certificate-file FILE "
               "--private-key-file FILE'"
             : "; if it speaks TLS, see 'nsactl context --help'";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const Endpoint& endpoint,
                                                     std::optional<absl::Duration> timeout,
                                                     Interrupt* interrupt) {
  NSA_ASSIGN_OR_RETURN(const auto channel, OpenChannel(endpoint.address, endpoint.tls));
  return std::unique_ptr<Client>(
      new Client(endpoint, timeout, interrupt, v1::CoordinatorService::NewStub(channel)));
}

absl::Status Client::Explain(const grpc::Status& status, absl::Duration timeout) const {
  if (interrupt_->raised()) return absl::CancelledError("interrupted");
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    const bool here = endpoint_.source == "default";
    const std::string tls = UsesTls(endpoint_) ? WhyTlsFailed(status.error_message()) : "";
    if (!tls.empty()) {
      return absl::UnauthenticatedError(
          absl::StrCat("coordinator: ", endpoint_.address, ": ", tls));
    }
    return absl::UnavailableError(absl::StrCat(
        "coordinator: ", endpoint_.address, " cannot be reached (",
        WhyUnreachable(status.error_message()), "); ",
        here ? "start one with 'nsa-coordinator', or name another with --address or 'nsactl "
               "context use NAME'"
             : absl::StrCat("the address is from ", endpoint_.source,
                            "; check it, or start a coordinator there with 'nsa-coordinator'"),
        WhatElseAClosedConnectionIs(endpoint_, status.error_message())));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        absl::StrCat("coordinator: ", endpoint_.address, " did not answer in ",
                     absl::FormatDuration(timeout), " (--timeout); try a longer --timeout"));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(absl::StrCat(
        "coordinator: ", endpoint_.address, " does not know this request (nsactl is ", kVersion,
        "; 'nsactl version' shows both); start that version of "
        "nsa-coordinator, or use the nsactl of its own"));
  }
  if (status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(
        absl::StrCat("coordinator: ", endpoint_.address, " ended the call; try again"));
  }
  return FromGrpc(status);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Client::Call(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                                      const Request& request, absl::Duration default_timeout,
                                      ErrorDetails* details) {
  const absl::Duration timeout = timeout_.value_or(default_timeout);
  const auto context = MakeContext(timeout, endpoint_.token);
  const Interrupt::Scope scope(interrupt_, [&] { context->TryCancel(); });
  Response response;
  const grpc::Status status = (stub_.get()->*method)(context.get(), request, &response);
  if (status.ok()) return response;
  if (details != nullptr) *details = DetailsOf(status);
  return Explain(status, timeout);
}

template <typename Request, typename Response>
absl::Status Client::Stream(std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(
                                grpc::ClientContext*, const Request&),
                            const Request& request,
                            const std::function<bool(const Response&)>& on_message) {
  const auto context = MakeContext(absl::InfiniteDuration(), endpoint_.token);
  const Interrupt::Scope scope(interrupt_, [&] { context->TryCancel(); });
  const auto reader = (stub_.get()->*method)(context.get(), request);
  Response response;
  while (reader->Read(&response)) {
    if (on_message(response)) continue;
    context->TryCancel();
    while (reader->Read(&response)) {
    }
    reader->Finish();
    return absl::OkStatus();
  }
  const grpc::Status status = reader->Finish();
  return status.ok() ? absl::OkStatus() : Explain(status, absl::InfiniteDuration());
}

absl::StatusOr<v1::SubmitJobResponse> Client::SubmitJob(const v1::SubmitJobRequest& request,
                                                        ErrorDetails* details) {
  return Call(&Stub::SubmitJob, request, kTimeout, details);
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& job) {
  v1::GetJobRequest request;
  request.set_job(job);
  NSA_ASSIGN_OR_RETURN(v1::GetJobResponse response, Call(&Stub::GetJob, request, kTimeout));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs(const v1::ListJobsRequest& request) {
  return Call(&Stub::ListJobs, request, kTimeout);
}

absl::StatusOr<v1::Job> Client::StopJob(const v1::StopJobRequest& request) {
  NSA_ASSIGN_OR_RETURN(v1::StopJobResponse response, Call(&Stub::StopJob, request, kTimeout));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Client::ResumeJob(const std::string& job) {
  v1::ResumeJobRequest request;
  request.set_job(job);
  NSA_ASSIGN_OR_RETURN(v1::ResumeJobResponse response, Call(&Stub::ResumeJob, request, kTimeout));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::DeleteJobResponse> Client::DeleteJob(const v1::DeleteJobRequest& request) {
  return Call(&Stub::DeleteJob, request, kTimeout);
}

absl::StatusOr<v1::DumpStackResponse> Client::DumpStack(const v1::DumpStackRequest& request) {
  return Call(&Stub::DumpStack, request, kDumpTimeout);
}

absl::StatusOr<v1::ListCheckpointsResponse> Client::ListCheckpoints(const std::string& job) {
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  return Call(&Stub::ListCheckpoints, request, kTimeout);
}

absl::StatusOr<v1::VerifyCheckpointResponse> Client::VerifyCheckpoint(
    const v1::VerifyCheckpointRequest& request) {
  return Call(&Stub::VerifyCheckpoint, request, kVerifyTimeout);
}

absl::StatusOr<v1::ListNodesResponse> Client::ListNodes() {
  return Call(&Stub::ListNodes, v1::ListNodesRequest(), kTimeout);
}

absl::StatusOr<v1::GetVersionResponse> Client::GetVersion() {
  return Call(&Stub::GetVersion, v1::GetVersionRequest(), kTimeout);
}

absl::Status Client::WatchJob(const v1::WatchJobRequest& request,
                              const std::function<bool(const v1::WatchJobResponse&)>& on_message) {
  return Stream(&Stub::WatchJob, request, on_message);
}

absl::Status Client::WatchEvents(
    const v1::WatchEventsRequest& request,
    const std::function<bool(const v1::WatchEventsResponse&)>& on_message) {
  return Stream(&Stub::WatchEvents, request, on_message);
}

absl::Status Client::WatchRecords(
    const v1::WatchRecordsRequest& request,
    const std::function<bool(const v1::WatchRecordsResponse&)>& on_message) {
  return Stream(&Stub::WatchRecords, request, on_message);
}

absl::Status Client::StreamLogs(
    const v1::StreamLogsRequest& request,
    const std::function<bool(const v1::StreamLogsResponse&)>& on_message) {
  return Stream(&Stub::StreamLogs, request, on_message);
}

}  // namespace nsa
