"""From files to what the model is given: records, dataset readers, DICOM, preparation, inputs, batches."""
