# Weights travel as archives, two thirds of their size, and lie unpacked beside the other files of their folder.
function(bt_unpack_weights archive folder)
  set(archive ${PROJECT_SOURCE_DIR}/pocket/${archive})
  set(folder ${PROJECT_SOURCE_DIR}/pocket/${folder})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${archive})
  foreach(file ${ARGN})
    # (True where the file is not there, too.)
    if(${archive} IS_NEWER_THAN ${folder}/${file})
      file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder} TOUCH)
      break()
    endif()
  endforeach()
endfunction()

bt_unpack_weights(weights.tar.xz model model-00001-of-00002.safetensors model-00002-of-00002.safetensors)
set(BT_POCKET_DRAFTS draft-mla draft-llama)  # Eagle3 drafts of the pocket model, one of each published type
foreach(draft ${BT_POCKET_DRAFTS})
  bt_unpack_weights(${draft}.tar.xz ${draft} model.safetensors)
endforeach()
