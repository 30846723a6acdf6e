#include "worker/train/data/prepared/token_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/durable_folder.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/job/data/prepared.h"
#include "common/run/atomic_file.h"
#include "worker/train/data/cache/entry_lock.h"
#include "worker/train/data/prepared/token_key.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLockLook = absl::Milliseconds(100);  // between looks at another process
constexpr absl::Duration kProgressEvery =
    absl::Seconds(10);               // between two lines about the progress
constexpr int64_t kIndexBytes = 20;  // of a document in an index

std::string GiB(int64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

// Says why the caller holds the data in memory.
void WarnHeld(const SetOptions& set, const absl::Status& why) {
  spdlog::warn("data: {}: every rank holds the tokens in memory: {}", set.files.field,
               std::string(why.message()));
}

// The folder of all entries. Its mode keeps private data private.
absl::Status MakeFolder(const fs::path& cache) {
  const fs::path folder = TokenEntry(cache, "any").tokens().parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return absl::ErrnoToStatus(error.value(), folder.string());
  if (chmod(cache.c_str(), 0700) != 0) return absl::ErrnoToStatus(errno, cache.string());
  return absl::OkStatus();
}

// Gives what was written its name.
absl::Status Publish(const TokenEntry& entry) {
  std::error_code error;
  fs::rename(entry.partial(), entry.tokens(), error);
  if (error) return absl::ErrnoToStatus(error.value(), entry.tokens().string());
  fs::remove(entry.needs(), error);
  return SyncFolder(entry.tokens().parent_path());
}

}  // namespace

// What one writing remembers.
struct TokenCache::Making {
  int64_t bytes = 0;      // of the tokens and their indexes so far
  int64_t allowed = 0;    // that they may become before the cache is looked at again
  bool no_room = false;   // the error is that they do not fit
  bool not_kept = false;  // the error is one of the cache, not of the files
  absl::Duration told = RealClock().Monotonic();
};

TokenCache::Mapped TokenCache::Open(SetOptions set, const DocumentEncoder& encoder) {
  set.shard_bytes = options_.shard_bytes;
  set.shard_documents = options_.shard_documents;
  NSA_ASSIGN_OR_RETURN(const std::optional<TokenEntry> entry, EntryOf(set, encoder));
  if (!entry) return std::nullopt;
  BeatWatch beat(entry->lock());
  bool told = false;
  while (true) {
    absl::StatusOr<PreparedFolder> mapped = Map(set, *entry);
    if (absl::IsCancelled(mapped.status())) return mapped.status();
    if (mapped.ok()) return std::optional(*std::move(mapped));
    const absl::StatusOr<EntryLock> lock = EntryLock::Take(entry->lock());
    if (lock.ok()) return MakeAndMap(set, encoder, *entry);
    if (!absl::IsAlreadyExists(lock.status())) {
      WarnHeld(set, lock.status());
      return std::nullopt;
    }
    if (!told) spdlog::info("data: {}: another process tokenizes it", set.files.field);
    told = true;
    NSA_RETURN_IF_ERROR(Wait(&beat));
  }
}

// Nothing, with a warning, where the tokens of these files cannot be kept.
absl::StatusOr<std::optional<TokenEntry>> TokenCache::EntryOf(
    const SetOptions& set, const DocumentEncoder& encoder) const {
  NSA_ASSIGN_OR_RETURN(const std::optional<std::string> key,
                       TokenKey(set, encoder.separator_or_none(), progress_));
  if (!key) {
    WarnHeld(set, absl::UnavailableError("a server says neither ETag nor date of a file, so that "
                                         "its versions cannot be told apart; copy the files"));
    return std::nullopt;
  }
  const absl::Status made = MakeFolder(folder_.path());
  if (!made.ok()) {
    WarnHeld(set, Annotate(made, "the cache cannot be written (data_cache_dir)"));
    return std::nullopt;
  }
  return TokenEntry(folder_.path(), *key);
}

// Goes on with the writer's beat, so that the caller's watch sees progress.
absl::Status TokenCache::Wait(BeatWatch* beat) const {
  if (progress_->cancelled) return absl::CancelledError("waiting for tokens: cancelled");
  if (beat->WentOn()) progress_->bytes += 1;
  absl::SleepFor(kLockLook);
  return absl::OkStatus();
}

// NotFound if there is no such entry; AlreadyExists while it is being deleted; every other error
// says what is damaged.
absl::StatusOr<PreparedFolder> TokenCache::Map(const SetOptions& set,
                                               const TokenEntry& entry) const {
  NSA_ASSIGN_OR_RETURN(EntryLock lock, EntryLock::Share(entry.manifest()));
  utimensat(AT_FDCWD, entry.manifest().c_str(), nullptr, 0);  // it was used now
  NSA_ASSIGN_OR_RETURN(PreparedFolder folder, PreparedFolder::Open(entry.tokens(), progress_));
  if (folder.manifest().sources_size() != static_cast<int>(set.paths.size()) ||
      folder.manifest().token_bytes() != set.token_bytes()) {
    return absl::DataLossError(absl::StrCat(entry.tokens().string(), ": is of other files"));
  }
  NSA_RETURN_IF_ERROR(folder.VerifyIndexes());
  folder.KeepWhileMapped(std::make_shared<EntryLock>(std::move(lock)));
  spdlog::info("data: {}: {} tokens of {} documents are mapped from {}", set.files.field,
               folder.manifest().tokens(), folder.manifest().documents(), entry.tokens().string());
  return folder;
}

// With the lock of the entry.
TokenCache::Mapped TokenCache::MakeAndMap(const SetOptions& set, const DocumentEncoder& encoder,
                                          const TokenEntry& entry) {
  absl::StatusOr<PreparedFolder> mapped = Map(set, entry);  // another process may have made it
  if (!mapped.ok()) {
    if (absl::IsCancelled(mapped.status())) return mapped.status();
    std::error_code error;
    if (fs::exists(entry.tokens(), error)) {
      spdlog::warn("data: {}: damaged tokens in the cache are deleted and made again: {}",
                   set.files.field, std::string(mapped.status().message()));
    }
    NSA_ASSIGN_OR_RETURN(const bool made, Make(set, encoder, entry));
    if (!made) return std::nullopt;
    mapped = Map(set, entry);
    if (absl::IsCancelled(mapped.status())) return mapped.status();
    if (!mapped.ok()) {
      WarnHeld(set, mapped.status());
      return std::nullopt;
    }
  }
  return std::optional(*std::move(mapped));
}

// False, with a warning, if the tokens cannot be kept.
absl::StatusOr<bool> TokenCache::Make(const SetOptions& set, const DocumentEncoder& encoder,
                                      const TokenEntry& entry) {
  absl::Status done = entry.Delete();
  if (done.ok()) done = CheckNeeds(entry);
  if (!done.ok()) {
    WarnHeld(set, done);
    return false;
  }
  spdlog::info("data: {}: {} files are tokenized once for this machine, into {}", set.files.field,
               set.paths.size(), entry.tokens().string());
  const RealClock clock;
  const absl::Duration started = clock.Monotonic();
  Making making;
  done = Write(set, encoder, entry, &making);
  if (done.ok()) {
    spdlog::info("data: {}: {:.1f} s to tokenize", set.files.field,
                 absl::ToDoubleSeconds(clock.Monotonic() - started));
    return true;
  }
  const absl::Status deleted = entry.Delete();
  if (!deleted.ok()) WarnHeld(set, deleted);
  // A set without documents is refused by those who need one.
  if (absl::IsInvalidArgument(done) && making.bytes == 0) return false;
  if (!making.not_kept) return done;
  if (making.no_room || absl::IsResourceExhausted(done)) {
    WriteFileAtomically(entry.needs(), absl::StrCat(making.bytes)).IgnoreError();
  }
  WarnHeld(set, done);
  return false;
}

// Writes the tokens and gives them their name.
absl::Status TokenCache::Write(SetOptions set, const DocumentEncoder& encoder,
                               const TokenEntry& entry, Making* making) {
  set.on_document = [&, also = std::move(set.on_document)](const v1::PreparedManifest& manifest) {
    Tell(set.files, manifest, making);
    NSA_RETURN_IF_ERROR(Grow(entry, manifest, making));
    return also ? also(manifest) : absl::OkStatus();
  };
  const Beat beat(entry.lock(), progress_->bytes);
  SetWriter writer(set, encoder, progress_);
  const absl::Status written = writer.Write(entry.partial()).status();
  making->not_kept = making->no_room || writer.folder_failed() || absl::IsAborted(written);
  NSA_RETURN_IF_ERROR(written);
  NSA_ASSIGN_OR_RETURN(const auto key, TokenKey(set, encoder.separator_or_none(), progress_));
  making->not_kept = true;
  if (!key || TokenEntry(folder_.path(), *key).stem != entry.stem) {
    return absl::AbortedError("a file changed while it was read; do not change data during a run");
  }
  return Publish(entry);
}

void TokenCache::Tell(const DataFiles& files, const v1::PreparedManifest& manifest,
                      Making* making) const {
  const absl::Duration now = RealClock().Monotonic();
  if (now - making->told < kProgressEvery) return;
  making->told = now;
  spdlog::info("data: {}: {} documents, {} tokens so far", files.field, manifest.documents(),
               manifest.tokens());
}

// Makes room in the cache step by step while the tokens grow.
absl::Status TokenCache::Grow(const TokenEntry& entry, const v1::PreparedManifest& manifest,
                              Making* making) const {
  making->bytes = manifest.tokens() * manifest.token_bytes() +
                  manifest.documents() * (kDocumentHashBytes + kIndexBytes);
  if (making->bytes <= making->allowed) return absl::OkStatus();
  // What is still in memory takes room too.
  const int64_t unwritten = std::max<int64_t>(making->bytes - BytesIn(entry.partial()), 0);
  const int64_t step = std::clamp<int64_t>(options_.cache.most_bytes / 64, 1, int64_t{256} << 20);
  const int64_t room = folder_.MakeRoom(unwritten + step) - unwritten;
  making->allowed = making->bytes + room;
  if (room > 0) return absl::OkStatus();
  making->no_room = true;
  return DoesNotFit(making->bytes, folder_.PossibleRoom() + making->bytes - unwritten);
}

// What failed for want of room is tried again once there is clearly more.
absl::Status TokenCache::CheckNeeds(const TokenEntry& entry) const {
  std::error_code error;
  constexpr uintmax_t kMostDigits = 20;
  const uintmax_t size = fs::file_size(entry.needs(), error);
  if (error || size > kMostDigits) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadWholeFile(entry.needs());
  int64_t needs = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &needs)) return absl::OkStatus();
  const int64_t room = folder_.PossibleRoom();
  return room / 5 * 4 > needs ? absl::OkStatus() : DoesNotFit(needs, room);
}

absl::Status TokenCache::DoesNotFit(int64_t least, int64_t room) const {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "they take more than %s, and %s has room for %s (data_cache_bytes %s, and %s of the disk "
      "stay free); raise data_cache_bytes, free space there, or use `nsactl data prepare`",
      GiB(least), folder_.path().string(), GiB(room), GiB(options_.cache.most_bytes),
      GiB(options_.least_free_bytes)));
}

}  // namespace nsa::train
