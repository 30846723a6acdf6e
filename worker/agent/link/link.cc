#include "worker/agent/link/link.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/health.h"

namespace nsa::agent {
namespace {

// Which files these are at present: differs once one of them is written or replaced.
std::string FilesOf(const v1::TlsConfig& tls) {
  std::string files;
  for (const std::string& path :
       {tls.certificate_file(), tls.private_key_file(), tls.client_ca_file()}) {
    struct stat now = {};
    if (path.empty() || stat(path.c_str(), &now) != 0) now = {};
    absl::StrAppend(&files, now.st_dev, ":", now.st_ino, ":", now.st_size, ":", now.st_mtim.tv_sec,
                    ".", now.st_mtim.tv_nsec, " ");
  }
  return files;
}

}  // namespace

Link::Link(const AgentOptions& options)
    : address_(options.coordinator_address), tls_(options.tls), secret_(options.secret) {}

absl::StatusOr<std::unique_ptr<Link>> Link::Open(const AgentOptions& options) {
  std::unique_ptr<Link> link(new Link(options));
  NSA_RETURN_IF_ERROR(link->Reopen());
  return link;
}

absl::Status Link::Reopen() {
  // Before they are read: what is written in between counts as another file.
  std::string files = FilesOf(tls_);
  NSA_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenChannel(address_, tls_));
  auto stub = v1::FleetService::NewStub(channel);
  auto fresh = std::make_shared<const Channel>(Channel{std::move(channel), std::move(stub)});
  const MutexLock lock(&mutex_);
  channel_ = std::move(fresh);
  files_ = std::move(files);
  return absl::OkStatus();
}

bool Link::HasOtherFiles() const {
  const std::string now = FilesOf(tls_);
  const MutexLock lock(&mutex_);
  return now != files_;
}

std::shared_ptr<const Link::Channel> Link::channel() const {
  const MutexLock lock(&mutex_);
  return channel_;
}

std::string Link::store_id() const {
  const MutexLock lock(&mutex_);
  return store_id_;
}

void Link::set_store_id(const std::string& id) {
  const MutexLock lock(&mutex_);
  store_id_ = id;
}

bool Link::connected() const {
  return channel()->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
}

// A call that waits for the connection, and not WaitForConnected(): that one cannot be ended.
absl::Status Link::Connect(absl::Duration patience) {
  if (connected()) return absl::OkStatus();
  const auto now = channel();
  const auto context = MakeContext(patience, "");
  context->set_wait_for_ready(true);
  const CallWatch::Guard guard(&watch_, context.get(), patience);
  AskHealth(now->channel.get(), context.get());
  if (now->channel->GetState(false) == GRPC_CHANNEL_READY) return absl::OkStatus();
  return absl::UnavailableError("not reachable");
}

void Caller::Cancel() {
  const MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : in_progress_) context->TryCancel();
}

bool Caller::Begin(grpc::ClientContext* context) {
  const MutexLock lock(&mutex_);
  if (!cancelled_) in_progress_.insert(context);
  return !cancelled_;
}

void Caller::End(grpc::ClientContext* context) {
  const MutexLock lock(&mutex_);
  in_progress_.erase(context);
}

absl::Status Caller::NoAnswer() {
  return absl::DeadlineExceededError(
      absl::StrCat("no answer within ", absl::FormatDuration(kPatience)));
}

}  // namespace nsa::agent
