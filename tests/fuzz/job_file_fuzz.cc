// Any bytes as a job file: the loader refuses them with places, or what it loads survives being
// written and read again, and preflight judges it. Nothing may crash, leak or take long.
#include <cstdint>
#include <string_view>

#include "common/job/load.h"
#include "common/preflight/preflight.h"
#include "google/protobuf/util/message_differencer.h"
#include "tests/fuzz/fuzz.h"

using nsa::fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  nsa::v1::JobSpec spec;
  const auto result = nsa::LoadYamlText(text, "fuzz.yaml", &spec);
  if (!result.ok()) {
    Require(absl::IsInvalidArgument(result.status()), result.status().ToString());
    Require(result.status().message().substr(0, 10) == "fuzz.yaml:", "an error without a place");
    return 0;
  }
  nsa::v1::JobSpec again;
  Require(nsa::LoadYamlText(nsa::ToYaml(spec), "fuzz.yaml", &again).ok(),
          "what was written cannot be read");
  Require(google::protobuf::util::MessageDifferencer::Equals(spec, again),
          "another job after writing and reading");

  nsa::MachineView machine;
  machine.gpus.push_back({"NVIDIA A100", int64_t{80} << 30, int64_t{79} << 30, 80});
  machine.cuda_worker = true;
  nsa::PreflightContext context;
  context.machine = &machine;
  nsa::v1::PreflightReport report = nsa::Preflight(spec, context);
  nsa::AddPlaces(result->places, &report);
  nsa::FormatReport(report, "fuzz.yaml");
  return 0;
}
