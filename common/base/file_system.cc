#include "common/base/file_system.h"

#include <linux/magic.h>
#include <sys/statfs.h>

namespace nsa {

std::string_view NetworkFileSystemOf(long type) {
  // f_type is signed, and some of these numbers have their highest bit set.
  switch (static_cast<unsigned long>(type) & 0xffffffffUL) {
    case NFS_SUPER_MAGIC:
      return "NFS";
    case SMB_SUPER_MAGIC:
    case 0xff534d42UL:  // CIFS_SUPER_MAGIC and SMB2_SUPER_MAGIC, which older headers lack
    case 0xfe534d42UL:
      return "SMB";
    case AFS_FS_MAGIC:
    case AFS_SUPER_MAGIC:
      return "AFS";
    case V9FS_MAGIC:
      return "9P";
    case CEPH_SUPER_MAGIC:
      return "CephFS";
    case 0x0bd00bd3UL:
      return "Lustre";
    case 0x47504653UL:
      return "GPFS";
    default:
      return "";
  }
}

std::string_view NetworkFileSystem(const std::filesystem::path& folder) {
  struct statfs info {};
  return statfs(folder.c_str(), &info) == 0 ? NetworkFileSystemOf(info.f_type) : "";
}

}  // namespace nsa
