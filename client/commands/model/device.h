// The device that a trained model computes on, and the worker program for it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli.h"
#include "client/connect/session.h"
#include "client/exit_code.h"

namespace nsa::client {

inline constexpr char kDefaultDevice[] = "cpu";

// Declares --device; `device` holds its default.
void AddDevice(Options* options, std::string* device);

// InvalidArgument unless `device` is cpu or cuda; FailedPrecondition when the worker program for
// GPUs is wanted and not beside this one.
absl::Status CheckDevice(const std::string& device);

// The path of the worker program for `device`, beside this one.
std::string WorkerOf(const std::string& device);

// Runs the worker program for `device`, which CheckDevice() accepts, with these arguments as
// RunWorkerInForeground() does.
absl::StatusOr<ExitCode> RunModelInForeground(Session& session, const std::string& device,
                                              std::vector<std::string> arguments);

// The same for a command that measures a model. With -o json or yaml it prints the numbers, which
// the worker writes into a file (--json), as a document.
absl::StatusOr<ExitCode> MeasureModelInForeground(Session& session, const std::string& device,
                                                  std::vector<std::string> arguments);

}  // namespace nsa::client
