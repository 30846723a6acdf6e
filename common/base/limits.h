// The limits of everything that comes from outside a process: checked before memory is taken.
// docs/limits.md is their table; a limit that only one file needs stays in that file and is listed
// there too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nsa::limits {

// Files.
inline constexpr int64_t kJobFileBytes = 1 << 20;         // a job file or a configuration file
inline constexpr int64_t kManifestBytes = 4 << 20;        // state.json of a checkpoint
inline constexpr size_t kOwnerFileBytes = 64 << 10;       // owner.json of an out_dir
inline constexpr uint64_t kTensorHeaderBytes = 16 << 20;  // the header of a safetensors file
inline constexpr int64_t kVocabularyBytes = 64 << 20;     // vocab.json, merges.txt
inline constexpr int64_t kCertificateBytes = 1 << 20;     // a PEM file
inline constexpr int64_t kAccessFileBytes = 64 << 20;     // tokens and nodes' secrets

// Names of jobs, jobs' owners, tokens and nodes.
inline constexpr size_t kJobNameBytes = 63;
inline constexpr size_t kTokenNameBytes = 63;
inline constexpr size_t kNodeNameBytes = 253;

inline constexpr size_t kRequestIdBytes = 128;

// What is kept.
inline constexpr size_t kTokens = 10'000;  // tokens and nodes' secrets together
inline constexpr size_t kNodes = 1'024;    // machines that send heartbeats

// What one heartbeat may bring.
inline constexpr size_t kHeartbeatBytes = 1 << 20;
inline constexpr int kGpusOfNode = 64;
inline constexpr int kWorkersOfNode = 4'096;
inline constexpr size_t kReportedTextBytes = 4 << 10;  // each free text; longer ones are cut
inline constexpr size_t kReportedWordBytes = 256;      // each id, uuid, version and reason

// What one record of a worker may bring; its texts are cut like those of a heartbeat.
inline constexpr size_t kRecordBytes = 1 << 20;
inline constexpr size_t kSampleTextBytes = 64 << 10;  // each text of a sample

// What the coordinator puts into one page or batch of a reply, beside its last element.
inline constexpr size_t kPageBytes = 8 << 20;

// Letters, digits and "-", "_", ".", not beginning with "-" or "."; 1 to `longest` bytes.
constexpr bool IsPlainName(std::string_view name, size_t longest) {
  if (name.empty() || name.size() > longest || name[0] == '-' || name[0] == '.') return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool digit = c >= '0' && c <= '9';
    if (!letter && !digit && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

}  // namespace nsa::limits
