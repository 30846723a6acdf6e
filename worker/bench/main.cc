// nsa-bench: how fast kernels, training steps and decoding run on this GPU.
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "worker/bench/decode.h"
#include "worker/bench/families.h"
#include "worker/bench/step.h"
#include "worker/bench/timing.h"
#include "worker/train/decode/decoder.h"

namespace nsa::bench {
namespace {

struct Options {
  NsaShape shape{32, 2048, 12, 2, 64, 64, 32, 16, 64, 16, 512};
  ModelWidths widths;
  std::string only;
  int repeats = 10;
  int64_t check_tokens = 2048;
  int64_t workspace_mib = 4096;
  bool budget = false;
};

// The largest ‖gpu − cpu‖ / ‖cpu‖ of any output; NaN when an output contains a NaN.
double RelativeError(const Data& gpu_data, const Call& gpu, const Data& cpu_data, const Call& cpu) {
  double worst = 0;
  for (size_t i = 0; i < gpu.outputs.size(); ++i) {
    const std::vector<float> got = gpu_data.Read(gpu.outputs[i].second),
                             want = cpu_data.Read(cpu.outputs[i].second);
    double error = 0, norm = 0;
    for (size_t j = 0; j < got.size(); ++j) {
      error += std::pow(static_cast<double>(got[j]) - want[j], 2);
      norm += static_cast<double>(want[j]) * want[j];
    }
    const double relative = std::sqrt(error / (norm + 1e-300));
    if (std::isnan(relative)) return relative;
    worst = std::max(worst, relative);
  }
  return worst;
}

// Compares GPU and CPU on one sequence of at most check_tokens tokens. -1 when the family has no
// outputs to compare.
absl::StatusOr<double> Check(const Gpu& gpu, const Family& family, const Options& options) {
  NsaShape shape = options.shape;
  shape.batch = 1;
  shape.seq_len = static_cast<int32_t>(std::min<int64_t>(shape.seq_len, options.check_tokens));
  Data gpu_data(gpu.exec()), cpu_data(Exec{});
  const Call on_gpu = family.make(shape, &gpu_data), on_cpu = family.make(shape, &cpu_data);
  NSA_RETURN_IF_ERROR(gpu_data.status());
  if (on_gpu.outputs.empty()) return -1.0;
  NSA_RETURN_IF_ERROR(on_gpu.run());
  NSA_RETURN_IF_ERROR(on_cpu.run());
  return RelativeError(gpu_data, on_gpu, cpu_data, on_cpu);
}

absl::Status RunFamily(const Gpu& gpu, const Ceilings& ceilings, const Family& family,
                       const Options& options, bool* all_correct) {
  double error = -1;
  if (options.check_tokens > 0) {
    NSA_ASSIGN_OR_RETURN(error, Check(gpu, family, options));
  }
  Data data(gpu.exec());
  const Call call = family.make(options.shape, &data);
  NSA_RETURN_IF_ERROR(data.status());
  NSA_ASSIGN_OR_RETURN(const double ms, gpu.Time(options.repeats, call.run));
  const double seconds = ms / 1e3;
  const double floor =
      std::max(family.flops / ceilings.gemm_flops, family.bytes / ceilings.copy_bytes);
  const bool correct = error < 0 || error <= family.bound;
  *all_correct = *all_correct && correct;
  std::printf("%-30s %9.3f ms %8.1f TFLOP/s %8.0f GB/s %5.1f %% of the ceiling   ",
              family.name.c_str(), ms, family.flops / seconds / 1e12, family.bytes / seconds / 1e9,
              100 * floor / seconds);
  if (error < 0) {
    std::printf("not compared\n");
  } else {
    std::printf("error %.1e%s\n", error, correct ? "" : "  WRONG");
  }
  if (options.budget) {
    const Floors floors = FloorsOf(family.flops, family.bytes, family.executed, ceilings);
    std::printf("%s", FormatFloors(floors, seconds).c_str());
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::StatusOr<Ceilings> PrintCeilings(const Gpu& gpu) {
  NSA_ASSIGN_OR_RETURN(const Ceilings ceilings, MeasureCeilings(gpu));
  std::printf("%s, %s\n", gpu.name().c_str(), gpu.blas().c_str());
  std::printf("gemm 8192^3 bf16 %.0f TFLOP/s, copy %.2f TB/s, launch %.2f us, in a graph %.2f us\n",
              ceilings.gemm_flops / 1e12, ceilings.copy_bytes / 1e12, ceilings.launch_seconds * 1e6,
              ceilings.graph_launch_seconds * 1e6);
  std::fflush(stdout);
  return ceilings;
}

// True when every comparison was within its bound.
absl::StatusOr<bool> RunKernels(const Options& options) {
  NSA_RETURN_IF_ERROR(options.shape.Validate());
  NSA_ASSIGN_OR_RETURN(const auto gpu, Gpu::Open(options.workspace_mib << 20));
  NSA_ASSIGN_OR_RETURN(const Ceilings ceilings, PrintCeilings(*gpu));
  std::printf("%s\n", options.shape.ToString().c_str());
  bool all_correct = true;
  NSA_ASSIGN_OR_RETURN(const int32_t architecture, cuda::KernelArchitecture());
  const KernelCode code = architecture >= 90 ? KernelCode::kSm90a : KernelCode::kSm80;
  for (const Family& family : Families(options.shape, options.widths, code)) {
    if (family.name.find(options.only) == std::string::npos) continue;
    NSA_RETURN_IF_ERROR(
        Annotate(RunFamily(*gpu, ceilings, family, options, &all_correct), family.name));
  }
  return all_correct;
}

absl::StatusOr<bool> RunCeilings() {
  NSA_ASSIGN_OR_RETURN(const auto gpu, Gpu::Open(1 << 20));
  NSA_RETURN_IF_ERROR(PrintCeilings(*gpu).status());
  return true;
}

absl::StatusOr<bool> RunSteps(const StepOptions& options) {
  Ceilings ceilings;
  {
    NSA_ASSIGN_OR_RETURN(const auto gpu, Gpu::Open(1 << 20));
    NSA_ASSIGN_OR_RETURN(ceilings, PrintCeilings(*gpu));
  }
  NSA_RETURN_IF_ERROR(RunStep(options, ceilings));
  return true;
}

absl::StatusOr<bool> RunDecodes(const DecodeOptions& options) {
  NSA_RETURN_IF_ERROR(RunDecode(options));
  return true;
}

CLI::App* AddDecode(CLI::App* app, DecodeOptions* options) {
  CLI::App* decode = app->add_subcommand(
      "decode", "one more token of a job's model, by the number of tokens before it: time, keys");
  decode->add_option("job", options->job, "job file")->required();
  decode->add_option("--contexts", options->contexts, "tokens after the last step, e.g. 2048,8192")
      ->delimiter(',')
      ->check(CLI::Range(2, 1'048'576))
      ->capture_default_str();
  decode->add_option("--slots", options->slots, "sequences that are decoded together, e.g. 1,8")
      ->delimiter(',')
      ->check(CLI::Range(1, train::Decoder::kMostSlots))
      ->capture_default_str();
  decode->add_option("--steps", options->steps, "timed steps; the median is reported")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  decode->add_flag("--vs-dense", options->vs_dense, "also the same model with dense attention");
  decode->add_option("--device", options->device, "cpu or cuda; default: cuda if there is a GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  return decode;
}

void AddShape(CLI::App* app, Options* options) {
  NsaShape& s = options->shape;
  app->add_option("--batch", s.batch, "sequences")->capture_default_str();
  app->add_option("--seq", s.seq_len, "tokens per sequence")->capture_default_str();
  app->add_option("--heads", s.n_heads, "query heads")->capture_default_str();
  app->add_option("--groups", s.n_kv_groups, "key/value groups")->capture_default_str();
  app->add_option("--dk", s.d_k, "width of keys")->capture_default_str();
  app->add_option("--dv", s.d_v, "width of values")->capture_default_str();
  app->add_option("--block", s.l, "tokens of a compression block")->capture_default_str();
  app->add_option("--stride", s.d, "stride of compression blocks")->capture_default_str();
  app->add_option("--sel-block", s.l_sel, "tokens of a selection block")->capture_default_str();
  app->add_option("--n-sel", s.n_sel, "selected blocks")->capture_default_str();
  app->add_option("--window", s.window, "window")->capture_default_str();
  app->add_option("--dim", options->widths.dim, "model width")->capture_default_str();
  app->add_option("--vocab", options->widths.vocab, "vocabulary")->capture_default_str();
  app->add_option("--parameters", options->widths.parameters,
                  "parameters for the optimizer families (global_norm, adamw)")
      ->capture_default_str();
}

std::map<std::string, Recompute> RecomputesByName() {
  std::map<std::string, Recompute> all;
  for (const Recompute one :
       {Recompute::kNothing, Recompute::kNorms, Recompute::kMlp, Recompute::kBlock}) {
    all.emplace(RecomputeName(one), one);
  }
  return all;
}

int Main(int argc, char** argv) {
  CLI::App app{"Times kernels, training steps and decoding on this machine's GPU"};
  app.require_subcommand(1);
  app.add_flag_callback(
      "--as-a100", cuda::ImitateOccupancyOfA100,
      "with the code for sm_80: as many thread blocks on a multiprocessor as an A100 has room for");
  Options options;
  CLI::App* kernels = app.add_subcommand(
      "kernels",
      "each kernel family at a shape: time, TFLOP/s, GB/s, share of the measured "
      "ceiling, and whether it equals the CPU reference; exit code 1 when one does not");
  AddShape(kernels, &options);
  kernels->add_option("--only", options.only, "families whose name contains this");
  kernels->add_option("--repeats", options.repeats, "timed calls; the median is reported")
      ->capture_default_str();
  kernels
      ->add_option("--check-tokens", options.check_tokens,
                   "tokens of the sequence that is compared with the CPU; 0: compare nothing")
      ->capture_default_str();
  kernels->add_flag("--budget", options.budget,
                    "what is needed, what is executed, and how long each unit of the GPU takes for "
                    "it at its ceiling; - where that is not derived");
  kernels->add_option("--workspace-mib", options.workspace_mib, "scratch memory of the kernels")
      ->capture_default_str();
  CLI::App* ceilings =
      app.add_subcommand("ceilings", "matrix product, copy and launch: what the GPU can do");
  StepOptions step_options;
  CLI::App* step = app.add_subcommand(
      "step", "whole training steps of a job file: tokens per second, time per kernel, MFU");
  step->add_option("job", step_options.job, "job file")->required();
  step->add_flag("--vs-dense", step_options.vs_dense,
                 "then the same model with dense attention, by the same program");
  step->add_flag("!--no-kernels", step_options.kernels, "leave out the time by kernel");
  step->add_option("--recompute", step_options.recompute,
                   "what backward recomputes; default: as the worker decides")
      ->transform(CLI::CheckedTransformer(RecomputesByName()));
  CLI::Option* const checkpoint =
      step->add_option("--checkpoint", step_options.checkpoint,
                       "weights of a trained model instead of random ones; needs --text");
  CLI::Option* const text = step->add_option("--text", step_options.text,
                                             "file whose tokens are read instead of random ones");
  checkpoint->needs(text);
  text->needs(checkpoint);
  step->add_option("--steps", step_options.steps, "timed steps; the median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  DecodeOptions decode_options;
  const CLI::App* decode = AddDecode(&app, &decode_options);
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<bool> correct = ceilings->parsed() ? RunCeilings()
                                       : step->parsed()   ? RunSteps(step_options)
                                       : decode->parsed() ? RunDecodes(decode_options)
                                                          : RunKernels(options);
  if (!correct.ok()) {
    std::fprintf(stderr, "nsa-bench: %s\n", std::string(correct.status().message()).c_str());
    return 2;
  }
  return *correct ? 0 : 1;
}

}  // namespace
}  // namespace nsa::bench

int main(int argc, char** argv) { return nsa::bench::Main(argc, argv); }
