#include "worker/train/telemetry/environment.h"

#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string_view>
#include <thread>

#include "absl/time/clock.h"
#include "common/base/utc_text.h"
#include "common/base/version.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

extern char** environ;  // NOLINT: no POSIX header declares it

namespace nsa::train {
namespace {

using Json = nlohmann::ordered_json;

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

Json Variables() {
  Json variables = Json::object();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    for (const std::string_view prefix : {"NSA_", "OMP_", "OPENBLAS_", "CUDA_", "NCCL_"}) {
      const size_t equals = text.find('=');
      const std::string_view name = text.substr(0, equals);
      const bool secret = name.find("TOKEN") != std::string_view::npos ||
                          name.find("SECRET") != std::string_view::npos ||
                          name.find("KEY") != std::string_view::npos ||
                          name.find("PASSWORD") != std::string_view::npos;
      if (name.substr(0, prefix.size()) != prefix || equals == std::string_view::npos) continue;
      variables[std::string(name)] = secret ? "(not shown)" : std::string(text.substr(equals + 1));
    }
  }
  return variables;
}

// The CUDA driver's library that this process has loaded; null without one. It shows whether it is
// that of the driver or that of the forward-compatibility package.
Json CudaLibrary() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && line.find("/libcuda.so", path) != std::string::npos) {
      return line.substr(path);
    }
  }
  return nullptr;
}

Json SpecJson(const v1::JobSpec& spec) {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(spec, &text, options).ok()) return nullptr;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::string EnvironmentJson(const ReporterOptions& options) {
  utsname system{};
  uname(&system);
  struct sysinfo memory {};
  sysinfo(&memory);
  const int64_t bytes = static_cast<int64_t>(memory.totalram) * memory.mem_unit;
  const Json json = {{"time", UtcText(absl::GetCurrentTimeNanos())},
                     {"version", std::string(kVersion)},
                     {"revision", std::string(kRevision)},
                     {"compiler", __VERSION__},
                     {"host", system.nodename},
                     {"kernel", system.release},
                     {"processor", ProcessorName()},
                     {"cores", std::thread::hardware_concurrency()},
                     {"memory_bytes", bytes},
                     {"memory_mib", bytes / (1 << 20)},
                     {"memory_gib", static_cast<double>(bytes) / (1 << 30)},
                     {"device", options.device},
                     {"cuda_library", CudaLibrary()},
                     {"pid", getpid()},
                     {"job_id", options.job_id},
                     {"generation", options.generation},
                     {"world_size", options.world_size},
                     {"resumed_step", options.resumed_step},
                     {"environment", Variables()},
                     {"spec", SpecJson(options.spec)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace nsa::train
