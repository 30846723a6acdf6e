// `nsa-worker serve` as a child of this program.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/connect/interrupt.h"
#include "common/run/process.h"

namespace nsa::client {

class ModelServer {
 public:
  // Starts `program`, the path of a worker, on a checkpoint or out_dir, at a free port of loopback,
  // and waits until it serves. It is out of reach of Ctrl-C, and ends with this process, however
  // that ends. Cancelled when interrupted; FailedPrecondition with what the worker says when it
  // ends instead; NotFound or PermissionDenied if it cannot be started.
  static absl::StatusOr<std::unique_ptr<ModelServer>> Start(const std::string& program,
                                                            const std::string& device,
                                                            const std::string& model, int context,
                                                            Interrupt* interrupt);
  // Asks it to end, which takes a second at most, and waits.
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  // "http://127.0.0.1:38211".
  const std::string& url() const { return url_; }

 private:
  ModelServer() = default;
  absl::Status AwaitUrl(const std::string& program, const std::filesystem::path& output,
                        Interrupt* interrupt);

  ProcessIdentity process_;  // pid 0: it has ended
  std::string url_;
};

}  // namespace nsa::client
