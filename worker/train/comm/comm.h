// Collectives between the ranks of a gang. Every rank calls the same collectives in the same order.
// The status page shows the name of the collective that a rank is waiting in.
//
// Results are repeatable: for a given world size the order of summation is fixed, and every rank
// receives the same bits. A lost peer gives Unavailable, a peer that is late DeadlineExceeded.
// After either error the Comm cannot be used any more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/run/status_page.h"

namespace nsa::train {

enum class Reduce { kSum, kMin, kMax };

// How floats travel to other ranks where they are summed.
enum class Wire {
  kF32,
  kBf16,  // rounded to nearest even on each rank before the sum, and after each addition
};

// One thread at a time.
class Comm {
 public:
  virtual ~Comm() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // The status page on which collectives show their name; may be null.
  void set_status_page(StatusPage* page) { page_ = page; }
  StatusPage* status_page() const { return page_; }

  // values ← Σ over ranks, on every rank, in pieces with the borders `cuts`: piece r is
  // values[cuts[r]] to values[cuts[r + 1]], from 0 to the size of `values`; one piece for each
  // rank, which may be empty. The sum of a piece begins at the rank behind r and ends at rank r. It
  // has the bits of ReduceScatterSum(), which AllGather() then brings to all.
  absl::Status AllReduceSum(std::string_view name, std::span<float> values,
                            std::span<const int64_t> cuts, Wire wire = Wire::kF32);

  // Piece r ← Σ over ranks, on rank r only; other pieces have undefined values then.
  absl::Status ReduceScatterSum(std::string_view name, std::span<float> values,
                                std::span<const int64_t> cuts, Wire wire = Wire::kF32);

  // Piece r of rank r, as it is, on every rank.
  absl::Status AllGather(std::string_view name, std::span<float> values,
                         std::span<const int64_t> cuts);

  // values ← reduction over ranks of a few doubles, on every rank.
  absl::Status AllReduce(std::string_view name, Reduce reduce, std::span<double> values);

  // Copies the bytes of rank `root` to every rank.
  absl::Status Broadcast(std::string_view name, int root, std::span<std::byte> bytes);

  // All-to-all within groups of `group_size` consecutive ranks, which divides the world size.
  // `send` and `receive` are group_size equal blocks: block p of `send` goes to rank p of the
  // group, and block p of `receive` comes from it. They must not overlap. InvalidArgument when
  // sizes do not fit.
  absl::Status ExchangeInGroups(std::string_view name, int group_size,
                                std::span<const std::byte> send, std::span<std::byte> receive);

  // Returns when every rank has called it.
  absl::Status Barrier(std::string_view name);

  // Unavailable with PEER_LOST when this rank can tell that another one has ended; never waits. For
  // a rank that is waiting for something else, e.g. its GPU.
  virtual absl::Status CheckPeers() = 0;

 protected:
  virtual absl::Status DoReduceScatterSum(std::span<float> values, std::span<const int64_t> cuts,
                                          Wire wire) = 0;
  // With kBf16 the values of a rank's own piece are bf16 already, and all pieces travel so.
  virtual absl::Status DoAllGather(std::span<float> values, std::span<const int64_t> cuts,
                                   Wire wire) = 0;
  virtual absl::Status DoAllReduce(Reduce reduce, std::span<double> values) = 0;
  virtual absl::Status DoBroadcast(int root, std::span<std::byte> bytes) = 0;
  virtual absl::Status DoExchangeInGroups(int group_size, std::span<const std::byte> send,
                                          std::span<std::byte> receive) = 0;
  virtual absl::Status DoBarrier() = 0;

 private:
  StatusPage* page_ = nullptr;
};

// A gang with one rank: every collective is the identity.
std::unique_ptr<Comm> SingleRank();

// Where a rank waits for the rank before it.
struct ListenAt {
  std::string host = "127.0.0.1";  // numeric; an address of this machine that the other ranks reach
  uint16_t first_port = 0;         // the first free port from here to last_port; 0: any
  uint16_t last_port = 0;
};

struct TcpOptions {
  int rank = 0;
  int world_size = 1;
  std::filesystem::path rendezvous_dir;  // shared by all ranks of one generation, and only by them
  int64_t generation = 1;                // ranks of different generations do not meet
  ListenAt listen;
  absl::Duration timeout = absl::Minutes(5);  // for connecting, and for each collective
};

// Connects to the other ranks over TCP. Errors are those of TcpRing::Meet(), e.g. DeadlineExceeded
// when some do not connect within the timeout.
absl::StatusOr<std::unique_ptr<Comm>> ConnectTcp(const TcpOptions& options);

}  // namespace nsa::train
