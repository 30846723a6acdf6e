// One rank on one GPU that sums gradients over NCCL, for tests that end processes.
//   nccl_rank MODE RANK WORLD RENDEZVOUS_DIR OUT_FILE
// MODE sum: sums twice and once more in a graph, checks the bits, writes the sums to OUT_FILE.
//      bf16: the same, the gradients travel in bf16.
//      share, share16: the same, each rank gets the sums of its share only, rounds them to bf16 and
//      sends them to the others; OUT_FILE has these, as floats.
//      window, window16: the same, the gradients come in windows whose memory later ones reuse, in
//      two passes whose sums are added up: those of the second are 0.
//      part, part16: the same, the weights are divided, too: they are gathered part by part before
//      they are read, in turn with the sums. OUT_FILE has what the step after has read.
//      die: sums for ever; rank 1 is killed by SIGKILL in between.   stand: rank 1 gets SIGSTOP.
//      cut: rank 1's GPU waits in a sum that rank 0 never joins, and rank 1 is killed.
// Exit codes: 0 done, 1 wrong or failed, 5 a peer was lost (said on stderr).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/dtype.h"
#include "kernels/nn/copy.h"
#include "kernels/optimizer/global_norm.h"
#include "worker/train/comm/comm.h"
#include "worker/train/comm/gradient_reducer.h"
#include "worker/train/comm/nccl_comm.h"
#include "worker/train/comm/nccl_library.h"

namespace nsa::train {
namespace {

constexpr int64_t kElements = 40'000'003;  // 160 MB, an odd number of floats
constexpr int64_t kExtras = 16;            // the last of them, which follow the gradients
constexpr int64_t kGradients = kElements - kExtras;
constexpr int64_t kPiece = 3'000'000;  // elements that "backward" finishes at a time

struct Arguments {
  std::string mode;
  int rank = 0;
  int world = 1;
  std::string rendezvous, out;
};

// A gradient element of rank `rank`, chosen so that sums are not exact in fp32.
float Value(int rank, int64_t i) {
  const auto bits = static_cast<uint32_t>((i + 1) * 2654435761u) ^ (0x9e3779b9u * (rank + 1));
  return (static_cast<float>(bits % 20011) - 10005.0f) * 1.37e-5f;
}

// What the status page says that a rank waits in; empty: in nothing.
struct Collective final : PageObserver {
  void OnPhase(Phase) override {}
  void OnMicroStep(int32_t) override {}
  void OnLayer(int32_t) override {}
  void OnKernel(std::string_view) override {}
  void OnCollective(std::string_view name) override { now = name; }
  std::string now;
};

class Rank {
 public:
  explicit Rank(const Arguments& arguments) : arguments_(arguments) {}

  absl::Status Open() {
    NSA_ASSIGN_OR_RETURN(const cuda::DeviceInfo info, cuda::ReadDevice());
    free_ = info.free_bytes;
    const absl::Duration timeout =
        arguments_.mode == "stand" ? absl::Seconds(3) : absl::Seconds(60);
    if (arguments_.world == 1) {
      host_ = SingleRank();
    } else {
      NSA_ASSIGN_OR_RETURN(host_, ConnectTcp({.rank = arguments_.rank,
                                              .world_size = arguments_.world,
                                              .rendezvous_dir = arguments_.rendezvous,
                                              .timeout = absl::Seconds(60)}));
    }
    const absl::Time began = absl::Now();
    NSA_ASSIGN_OR_RETURN(nccl_, NcclComm::Connect({.host = host_.get(), .timeout = timeout}));
    std::printf("rank %d: %s, %s, joined in %.2f s\n", arguments_.rank, info.name.c_str(),
                nccl_->description().c_str(), absl::ToDoubleSeconds(absl::Now() - began));
    NSA_ASSIGN_OR_RETURN(stream_, cuda::Stream::Create());
    NSA_ASSIGN_OR_RETURN(event_, cuda::Event::Create());
    NSA_ASSIGN_OR_RETURN(input_, cuda::DeviceMemory::Allocate(4 * kElements, "input"));
    NSA_ASSIGN_OR_RETURN(sums_, cuda::DeviceMemory::Allocate(4 * kElements, "sums"));
    std::vector<float> values(kElements);
    for (int64_t i = 0; i < kElements; ++i) values[i] = Value(arguments_.rank, i);
    NSA_RETURN_IF_ERROR(
        cuda::CopyBytes(stream_.get(), input_.data(), values.data(), 4 * kElements));
    NSA_RETURN_IF_ERROR(cuda::Synchronize(stream_.get()));
    SumOptions options = {.bf16 = bf16(), .windows = windows()};
    if (shares()) options.cuts = Cuts();
    const std::span<float> all = {Sums(), size_t{kElements}};
    NSA_ASSIGN_OR_RETURN(
        reducer_, GradientReducer::Create(nccl_.get(), windows() ? all.subspan(kGradients) : all,
                                          kGradients, GradientReducer::kBucketElements, options));
    if (windows()) {
      NSA_ASSIGN_OR_RETURN(windows_, cuda::DeviceMemory::Allocate(2 * 4 * kPiece, "windows"));
    }
    if (parts()) {
      NSA_ASSIGN_OR_RETURN(own_, cuda::DeviceMemory::Allocate(2 * kGradients, "own weights"));
      NSA_ASSIGN_OR_RETURN(gathered_, cuda::DeviceMemory::Allocate(2 * 2 * kPiece, "gathered"));
    }
    if (shares()) {
      NSA_ASSIGN_OR_RETURN(weights_, cuda::DeviceMemory::Allocate(2 * kGradients, "weights"));
      NSA_ASSIGN_OR_RETURN(squares_, cuda::DeviceMemory::Allocate(8 * arguments_.world, "squares"));
    }
    return absl::OkStatus();
  }

  absl::Status Run() {
    if (windows()) NSA_RETURN_IF_ERROR(CheckIdleAfterAPass());
    if (arguments_.mode == "sum" || shares() || bf16()) return SumAndCheck();
    if (arguments_.mode == "cut" && arguments_.rank == 0) {
      // The other rank's kernel waits for this rank, and this rank waits until the other is dead.
      return nccl_->WaitFor("nothing", []() -> absl::StatusOr<bool> { return false; });
    }
    if (arguments_.rank == 1) {
      std::thread([mode = arguments_.mode] {
        absl::SleepFor(absl::Seconds(2));
        kill(getpid(), mode == "stand" ? SIGSTOP : SIGKILL);
      }).detach();
    }
    while (true) {
      NSA_RETURN_IF_ERROR(EnqueueStep());
      NSA_RETURN_IF_ERROR(WaitForStep());
    }
  }

 private:
  float* Sums() const { return static_cast<float*>(sums_.data()); }
  bool parts() const { return arguments_.mode.starts_with("part"); }
  bool windows() const { return arguments_.mode.starts_with("window") || parts(); }
  bool shares() const { return arguments_.mode.starts_with("share") || windows(); }
  bool bf16() const { return arguments_.mode.ends_with("16"); }

  // Uneven shares.
  std::vector<int64_t> Cuts() const {
    std::vector<int64_t> cuts;
    for (int64_t rank = 0; rank < arguments_.world; ++rank) {
      cuts.push_back((kGradients * rank / arguments_.world + 4096 * rank) / 16 * 16);
    }
    cuts.push_back(kGradients);
    return cuts;
  }

  // Enqueues the sums as a training step does: gradients become final piece by piece, from the end.
  absl::Status EnqueueStep() {
    if (windows()) {
      NSA_RETURN_IF_ERROR(EnqueueWindows());
      return parts() ? EnqueueUpdate(own_.data()) : EnqueueGather();
    }
    NSA_RETURN_IF_ERROR(cuda::CopyBytes(stream_.get(), sums_.data(), input_.data(), 4 * kElements));
    for (int64_t begin = kElements - kExtras - kPiece; begin > 0; begin -= kPiece) {
      NSA_RETURN_IF_ERROR(reducer_->Ready(stream_.get(), begin));
    }
    NSA_RETURN_IF_ERROR(reducer_->Ready(stream_.get(), 0));
    NSA_RETURN_IF_ERROR(reducer_->Finish(stream_.get()));
    return shares() ? EnqueueGather() : absl::OkStatus();
  }

  // Parts are cut from the end, as backward completes them.
  static constexpr int64_t kParts = (kGradients + kPiece - 1) / kPiece;
  static Bucket PartOf(int64_t part) {
    const int64_t end = kGradients - (kParts - 1 - part) * kPiece;
    return {std::max<int64_t>(end - kPiece, 0), end};
  }
  std::byte* GatheredIn(int64_t part) const {
    return static_cast<std::byte*>(gathered_.data()) + part % 2 * 2 * kPiece;
  }

  // Enqueues that all ranks bring a part of the weights together.
  absl::Status Gather(int64_t part) {
    auto* const own = static_cast<std::byte*>(own_.data());
    const Bucket elements = PartOf(part);
    std::vector<NcclPiece> pieces;
    for (const Piece& piece : PiecesOf(elements, Cuts(), kPiece)) {
      pieces.push_back({.from = own + 2 * piece.begin,
                        .to = GatheredIn(part) + 2 * (piece.begin - elements.begin),
                        .bytes = 2 * (piece.end - piece.begin),
                        .root = piece.root});
    }
    return reducer_->Gather(stream_.get(), static_cast<int>(part % 2), pieces);
  }

  // Reads the weights of a part, while the other ranks' weights of `next` come, if there is one.
  absl::Status ReadPart(int64_t part, std::optional<int64_t> next) {
    if (next.has_value()) NSA_RETURN_IF_ERROR(Gather(*next));
    NSA_RETURN_IF_ERROR(reducer_->AwaitGather(stream_.get(), static_cast<int>(part % 2)));
    const Bucket elements = PartOf(part);
    return cuda::CopyBytes(stream_.get(),
                           static_cast<std::byte*>(weights_.data()) + 2 * elements.begin,
                           GatheredIn(part), 2 * (elements.end - elements.begin));
  }

  absl::Status EnqueueForward() {
    NSA_RETURN_IF_ERROR(Gather(0));
    for (int64_t part = 0; part < kParts; ++part) {
      NSA_RETURN_IF_ERROR(
          ReadPart(part, part + 1 < kParts ? std::optional(part + 1) : std::nullopt));
    }
    return absl::OkStatus();
  }

  // Backward reads the last two parts where forward has left them.
  absl::Status ReadAgain(int64_t part) {
    const bool gathers = part + 1 < kParts && part > 0;
    return ReadPart(part, gathers ? std::optional(part - 1) : std::nullopt);
  }

  // The same in windows, two of which take turns in memory.
  absl::Status EnqueueWindows() {
    const auto* const input = static_cast<const float*>(input_.data());
    reducer_->Reset();
    for (const bool second : {false, true}) {
      if (parts()) NSA_RETURN_IF_ERROR(EnqueueForward());
      NSA_RETURN_IF_ERROR(EnqueuePass(second));
    }
    NSA_RETURN_IF_ERROR(
        cuda::CopyBytes(stream_.get(), Sums() + kGradients, input + kGradients, 4 * kExtras));
    return reducer_->Finish(stream_.get());
  }

  // The first pass has the gradients, the second zeros.
  absl::Status EnqueuePass(bool second) {
    const auto* const input = static_cast<const float*>(input_.data());
    const int64_t own = Cuts()[arguments_.rank], size = Cuts()[arguments_.rank + 1] - own;
    float* window = static_cast<float*>(windows_.data());
    for (int64_t part = kParts - 1, turn = kPiece; part >= 0; --part, turn = -turn) {
      const auto [begin, end] = PartOf(part);
      const int64_t bytes = 4 * (end - begin);
      if (parts()) NSA_RETURN_IF_ERROR(ReadAgain(part));
      NSA_RETURN_IF_ERROR(reducer_->AwaitWindow(stream_.get(), end == kGradients));
      NSA_RETURN_IF_ERROR(second ? cuda::ZeroBytes(stream_.get(), window, bytes)
                                 : cuda::CopyBytes(stream_.get(), window, input + begin, bytes));
      NSA_RETURN_IF_ERROR(
          reducer_->SumWindow(stream_.get(), {.values = {window, static_cast<size_t>(end - begin)},
                                              .first = begin,
                                              .share = {Sums() + own, static_cast<size_t>(size)},
                                              .add = second}));
      window += turn;
    }
    return absl::OkStatus();
  }

  // While a rank computes the next pass it waits for no other rank, and its page says so.
  absl::Status CheckIdleAfterAPass() {
    page_.SetObserver(&collective_);
    reducer_->Reset();
    NSA_RETURN_IF_ERROR(EnqueuePass(/*second=*/false));
    NSA_RETURN_IF_ERROR(reducer_->AwaitWindow(stream_.get(), /*first=*/true));
    NSA_RETURN_IF_ERROR(WaitForStep());
    reducer_->Show(&page_);
    page_.SetObserver(nullptr);
    if (collective_.now.empty()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("after a pass the page says ", collective_.now));
  }

  // What follows the sums of a share: the number of this rank, as its sum of squares, goes to all,
  // and the sums, as its new weights.
  absl::Status EnqueueGather() {
    NSA_RETURN_IF_ERROR(EnqueueUpdate(weights_.data()));
    return reducer_->GatherWeights(stream_.get(), static_cast<std::byte*>(weights_.data()));
  }

  // The sums become the weights of this rank's share in `all`.
  absl::Status EnqueueUpdate(void* all) {
    const int64_t begin = Cuts()[arguments_.rank], size = Cuts()[arguments_.rank + 1] - begin;
    Exec exec;
    exec.backend = Backend::kCuda;
    exec.stream = stream_.get();
    auto* const squares = static_cast<double*>(squares_.data());
    NSA_RETURN_IF_ERROR(cuda::ZeroBytes(stream_.get(), squares, squares_.bytes()));
    NSA_RETURN_IF_ERROR(SquareSum(
        exec, {.values = {Sums() + begin, 0, DType::kF32}, .sum = squares + arguments_.rank}));
    NSA_RETURN_IF_ERROR(reducer_->ShareSquareSums(stream_.get(), squares));
    return Convert(exec, ConstTensor(Sums() + begin, size, DType::kF32),
                   Tensor(static_cast<std::byte*>(all) + 2 * begin, size, DType::kBf16));
  }

  absl::Status WaitForStep() {
    NSA_RETURN_IF_ERROR(event_.Record(stream_.get()));
    return nccl_->WaitFor("gradients", [this] {
      reducer_->Show(&page_);
      return event_.Done();
    });
  }

  absl::StatusOr<std::vector<float>> Read() {
    std::vector<float> values(kElements);
    if (shares()) {
      std::vector<nsa::bf16> rounded(kGradients);
      NSA_RETURN_IF_ERROR(
          cuda::CopyBytes(stream_.get(), rounded.data(), weights_.data(), 2 * kGradients));
      NSA_RETURN_IF_ERROR(cuda::Synchronize(stream_.get()));
      std::transform(rounded.begin(), rounded.end(), values.begin(),
                     [](nsa::bf16 value) { return static_cast<float>(value); });
      return values;
    }
    NSA_RETURN_IF_ERROR(cuda::CopyBytes(stream_.get(), values.data(), sums_.data(), 4 * kElements));
    NSA_RETURN_IF_ERROR(cuda::Synchronize(stream_.get()));
    return values;
  }

  // Compares with sums in double. The bound holds for fp32 sums in any order, and for bf16, where
  // each rank's value and each sum are rounded by 2⁻⁹ of them at most.
  absl::Status Check(const std::vector<float>& sums) const {
    const double relative = (arguments_.world - 1) * 6e-8 +
                            (bf16() ? arguments_.world * 0x1p-8 : 0) + (shares() ? 0x1p-8 : 0);
    for (int64_t i = 0; i < (shares() ? kGradients : kElements); ++i) {
      double want = 0, size = 0;
      for (int rank = 0; rank < arguments_.world; ++rank) {
        want += Value(rank, i);
        size += std::fabs(Value(rank, i));
      }
      const double bound = size * relative;
      if (!(std::fabs(sums[i] - want) <= bound)) {
        return absl::InternalError(
            absl::StrCat("sum ", i, ": ", sums[i], " (", want, " ± ", bound, ")"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SumAndCheck() {
    if (parts()) {  // whose weights the next step reads
      NSA_RETURN_IF_ERROR(EnqueueStep());
      NSA_RETURN_IF_ERROR(WaitForStep());
    }
    NSA_RETURN_IF_ERROR(EnqueueStep());
    NSA_RETURN_IF_ERROR(WaitForStep());
    NSA_ASSIGN_OR_RETURN(const std::vector<float> first, Read());
    NSA_RETURN_IF_ERROR(Check(first));
    NSA_ASSIGN_OR_RETURN(const int64_t free, cuda::FreeBytes());
    std::printf("rank %d: %d buckets a step, %ld MiB taken beside the data\n", arguments_.rank,
                reducer_->buckets(), static_cast<long>((free_ - free - 8 * kElements) >> 20));
    NSA_RETURN_IF_ERROR(EnqueueStep());
    NSA_RETURN_IF_ERROR(WaitForStep());
    NSA_RETURN_IF_ERROR(ExpectSame("second sum", first));
    {
      NSA_ASSIGN_OR_RETURN(const cuda::Graph graph,
                           cuda::Graph::Capture(stream_.get(), [this] { return EnqueueStep(); }));
      for (int i = 0; i < 3; ++i) {
        NSA_RETURN_IF_ERROR(graph.Launch(stream_.get()));
        NSA_RETURN_IF_ERROR(WaitForStep());
        NSA_RETURN_IF_ERROR(ExpectSame("sum in a graph", first));
      }
      NSA_RETURN_IF_ERROR(Time(graph));
    }
    std::ofstream(arguments_.out, std::ios::binary)
        .write(reinterpret_cast<const char*>(first.data()), 4 * kElements);
    return host_->Barrier("end");
  }

  absl::Status ExpectSame(const char* what, const std::vector<float>& first) {
    NSA_ASSIGN_OR_RETURN(const std::vector<float> again, Read());
    if (std::memcmp(first.data(), again.data(), 4 * kElements) == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(what, ": other bits than the first"));
  }

  absl::Status Time(const cuda::Graph& graph) {
    constexpr int kRounds = 20;
    const absl::Time began = absl::Now();
    for (int i = 0; i < kRounds; ++i) NSA_RETURN_IF_ERROR(graph.Launch(stream_.get()));
    NSA_RETURN_IF_ERROR(WaitForStep());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - began) / kRounds;
    std::printf("rank %d: %.3f ms a copy and sum of %.0f MB\n", arguments_.rank, seconds * 1e3,
                4e-6 * kElements);
    return absl::OkStatus();
  }

  const Arguments arguments_;
  StatusPage page_;
  Collective collective_;
  int64_t free_ = 0;  // free bytes on the GPU before anything is allocated
  std::unique_ptr<Comm> host_;
  std::unique_ptr<NcclComm> nccl_;
  cuda::Stream stream_;
  cuda::Event event_;
  cuda::DeviceMemory input_, sums_;
  cuda::DeviceMemory weights_, squares_;  // with shares
  cuda::DeviceMemory windows_;            // float [2, kPiece], with windows
  cuda::DeviceMemory own_;                // bf16 [kGradients], of which a rank has its share
  cuda::DeviceMemory gathered_;           // bf16 [2, kPiece]
  std::unique_ptr<GradientReducer> reducer_;
};

int Main(int argc, char** argv) {
  nccl::SetEnvironment();
  Arguments arguments;
  if (argc != 6 || !absl::SimpleAtoi(argv[2], &arguments.rank) ||
      !absl::SimpleAtoi(argv[3], &arguments.world)) {
    std::fprintf(stderr, "usage: nccl_rank MODE RANK WORLD RENDEZVOUS_DIR OUT_FILE\n");
    return 2;
  }
  arguments.mode = argv[1];
  arguments.rendezvous = argv[4];
  arguments.out = argv[5];
  Rank rank(arguments);
  absl::Status status = rank.Open();
  if (status.ok()) status = rank.Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "rank %d: %s\n", arguments.rank, status.ToString().c_str());
  // Like the worker, a rank that failed exits without freeing GPU resources; the driver does that.
  std::_Exit(ReasonOf(status) == Reason::kPeerLost ? 5 : 1);
}

}  // namespace
}  // namespace nsa::train

int main(int argc, char** argv) { return nsa::train::Main(argc, argv); }
